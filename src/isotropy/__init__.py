"""Isotropy: find out which symmetries your data has, how much, and build exactly that in.

result = isotropy.learn(network, (images, labels))
print(result.symmetries)
"""

from isotropy._version import __version__
from isotropy.checks import CallerError
from isotropy.curvature.blocks import DenseRoots, DiagonalRoots, KroneckerRoots
from isotropy.curvature.copies import Copies
from isotropy.curvature.layer_rules import LayerRule, Use, register_rule
from isotropy.data.labelled import LabelledData, Split
from isotropy.data.readers import read
from isotropy.equivariance.layouts import Follows, Grid, Invariant, Layout, Tokens
from isotropy.equivariance.penalty import lie_derivative_penalty
from isotropy.equivariance.testing import assert_equivariant
from isotropy.evidence.laplace import EvidenceValue, NotFiniteError
from isotropy.evidence.layers.settings import RelaxConfig
from isotropy.evidence.predictive import Calibration, Predictive, calibration
from isotropy.evidence.screening import Screening
from isotropy.evidence.settings import LearnConfig
from isotropy.evidence.verdict import Verdict
from isotropy.networks.averaging.augmentations import Augmentation, Symmetry, UniformRanges
from isotropy.networks.averaging.correlated import CorrelatedRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import Mixture, augmentation_over
from isotropy.networks.equivariant.emlp import EMLP
from isotropy.networks.equivariant.linear import EquivariantLinear
from isotropy.networks.export.transforms import (
    as_kornia,
    as_torchvision,
    augmentation_from_law,
    export_model,
)
from isotropy.networks.pathways.harden import harden
from isotropy.networks.pathways.relax import relax
from isotropy.networks.pathways.relaxed_layer import RelaxedLayer
from isotropy.symmetry.actions.action import Action, Generator, compose
from isotropy.symmetry.actions.catalogue import actions_named
from isotropy.symmetry.actions.finite import (
    Element,
    FiniteAction,
    RandomTransform,
    channel_permutations,
    flip,
    point_permutation,
    point_reflection,
    quarter_turns,
    reversal,
    sign_change,
)
from isotropy.symmetry.actions.images import AffineAction, affine
from isotropy.symmetry.actions.intensity import intensity
from isotropy.symmetry.actions.linear import LinearAction, linear_action, matrix_elements
from isotropy.symmetry.actions.points import points
from isotropy.symmetry.actions.sequences import sequences
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.group import Group
from isotropy.workflows.basis import BasisResult, equivariant_basis
from isotropy.workflows.building import BuildResult, build
from isotropy.workflows.estimators import InvariantClassifier, InvariantRegressor
from isotropy.workflows.learning import LearnProgress, LearnResult, learn
from isotropy.workflows.loading import load
from isotropy.workflows.measuring import MeasureResult, measure, measured_actions
from isotropy.workflows.profiling import ProfileResult, profile
from isotropy.workflows.relaxing import RelaxResult, learn_layers
from isotropy.workflows.screening import ScreenResult, screen

__all__ = [
    "Action",
    "AffineAction",
    "Augmentation",
    "BasisResult",
    "BuildResult",
    "Calibration",
    "CallerError",
    "Copies",
    "CorrelatedRanges",
    "DenseRoots",
    "DiagonalRoots",
    "EMLP",
    "Element",
    "EquivariantLinear",
    "EvidenceValue",
    "FiniteAction",
    "Follows",
    "Generator",
    "Grid",
    "Group",
    "Invariant",
    "InvariantClassifier",
    "InvariantModel",
    "InvariantRegressor",
    "KroneckerRoots",
    "LabelledData",
    "LayerRule",
    "Layout",
    "LearnConfig",
    "LearnProgress",
    "LearnResult",
    "LinearAction",
    "MeasureResult",
    "Mixture",
    "NotFiniteError",
    "Predictive",
    "ProfileResult",
    "RandomTransform",
    "RelaxConfig",
    "RelaxResult",
    "RelaxedLayer",
    "ScreenResult",
    "Screening",
    "Split",
    "Symmetry",
    "Tokens",
    "UniformRanges",
    "Use",
    "Verdict",
    "__version__",
    "actions_named",
    "affine",
    "as_kornia",
    "as_torchvision",
    "assert_equivariant",
    "augmentation_from_law",
    "augmentation_over",
    "build",
    "calibration",
    "channel_permutations",
    "compose",
    "equivariant_basis",
    "export_model",
    "flip",
    "group_named",
    "harden",
    "intensity",
    "learn",
    "learn_layers",
    "lie_derivative_penalty",
    "linear_action",
    "load",
    "matrix_elements",
    "measure",
    "measured_actions",
    "point_permutation",
    "point_reflection",
    "points",
    "profile",
    "quarter_turns",
    "read",
    "register_rule",
    "relax",
    "reversal",
    "screen",
    "sequences",
    "sign_change",
]
