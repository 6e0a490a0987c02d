"""The public names, for editors and type checkers; `__init__.py` imports them when asked."""

from isotropy._version import __version__
from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData
from isotropy.data.readers import read
from isotropy.data.streams.streamed import streamed
from isotropy.equivariance.lie_derivative import lie_derivative_penalty
from isotropy.equivariance.testing import assert_equivariant
from isotropy.evidence.layers.settings import RelaxConfig
from isotropy.evidence.settings import LearnConfig
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.equivariant.emlp import EMLP
from isotropy.networks.equivariant.linear import EquivariantLinear
from isotropy.networks.folding import fold
from isotropy.networks.pathways.harden import harden
from isotropy.report.loggers import log_to
from isotropy.symmetry.actions.action import Action, Generator, compose
from isotropy.symmetry.actions.catalogue import actions_named
from isotropy.symmetry.actions.finite import FiniteAction, flip, quarter_turns
from isotropy.symmetry.actions.images import affine, intensity
from isotropy.symmetry.actions.points import points
from isotropy.symmetry.actions.sequences import sequences
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Representation, Scalar, T, V
from isotropy.workflows.basis import equivariant_basis
from isotropy.workflows.building import BuildResult, build
from isotropy.workflows.certifying import CertifyConfig, CertifyResult, certify, verify
from isotropy.workflows.estimators import (
    InvariantClassifier,
    InvariantEncoder,
    InvariantRegressor,
)
from isotropy.workflows.exploring import profile, screen
from isotropy.workflows.learning import LearnResult, learn
from isotropy.workflows.loading import load
from isotropy.workflows.measuring import MeasureResult, measure
from isotropy.workflows.relaxing import RelaxResult, learn_layers, relax
from isotropy.workflows.representing import RepresentConfig, RepresentResult, represent
from isotropy.workflows.runs.result import Result
from isotropy.workflows.story import StoryConfig, StoryResult, story

__all__ = [
    "__version__",
    "EMLP",
    "T",
    "V",
    "Action",
    "BuildResult",
    "CallerError",
    "CertifyConfig",
    "CertifyResult",
    "EquivariantLinear",
    "FiniteAction",
    "Generator",
    "Group",
    "InvariantClassifier",
    "InvariantEncoder",
    "InvariantModel",
    "InvariantRegressor",
    "LabelledData",
    "LearnConfig",
    "LearnResult",
    "MeasureResult",
    "RelaxConfig",
    "RelaxResult",
    "RepresentConfig",
    "RepresentResult",
    "Representation",
    "Result",
    "Scalar",
    "StoryConfig",
    "StoryResult",
    "actions_named",
    "affine",
    "assert_equivariant",
    "build",
    "certify",
    "compose",
    "equivariant_basis",
    "flip",
    "fold",
    "group_named",
    "harden",
    "intensity",
    "learn",
    "learn_layers",
    "lie_derivative_penalty",
    "load",
    "log_to",
    "measure",
    "points",
    "profile",
    "quarter_turns",
    "read",
    "relax",
    "represent",
    "screen",
    "sequences",
    "story",
    "streamed",
    "verify",
]
