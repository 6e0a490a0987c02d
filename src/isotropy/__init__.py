"""Isotropy: find out which symmetries your data has, how much, and build exactly that in.

result = isotropy.learn(network, (images, labels))
print(result.symmetries)
"""

from isotropy._version import __version__
from isotropy.checks import CallerError
from isotropy.curvature.kronecker import DenseRoots, KroneckerRoots
from isotropy.curvature.layer_rules import LayerRule, Use, register_rule
from isotropy.data.labelled import LabelledData, Split
from isotropy.data.readers import load
from isotropy.evidence.laplace import NotFiniteError
from isotropy.evidence.schedule import LearnConfig
from isotropy.networks.augmentations import Symmetry, UniformRanges
from isotropy.networks.invariant_model import InvariantModel
from isotropy.symmetry.actions import Action, Generator
from isotropy.symmetry.image_actions import AffineAction, affine
from isotropy.workflows.learning import LearnProgress, LearnResult, learn
from isotropy.workflows.loading import load_model

__all__ = [
    "Action",
    "AffineAction",
    "CallerError",
    "DenseRoots",
    "Generator",
    "InvariantModel",
    "KroneckerRoots",
    "LabelledData",
    "LayerRule",
    "LearnConfig",
    "LearnProgress",
    "LearnResult",
    "NotFiniteError",
    "Split",
    "Symmetry",
    "UniformRanges",
    "Use",
    "__version__",
    "affine",
    "learn",
    "load",
    "load_model",
    "register_rule",
]
