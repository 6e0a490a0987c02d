"""The public names, for editors and type checkers; `__init__.py` imports them when asked."""

from isotropy._version import __version__ as __version__
from isotropy.checks import CallerError as CallerError
from isotropy.curvature.blocks import (
    DenseRoots as DenseRoots,
)
from isotropy.curvature.blocks import (
    DiagonalRoots as DiagonalRoots,
)
from isotropy.curvature.blocks import (
    KroneckerRoots as KroneckerRoots,
)
from isotropy.curvature.kinds import Copies as Copies
from isotropy.curvature.layer_rules import (
    LayerRule as LayerRule,
)
from isotropy.curvature.layer_rules import (
    Use as Use,
)
from isotropy.curvature.layer_rules import (
    register_rule as register_rule,
)
from isotropy.data.labelled import LabelledData as LabelledData
from isotropy.data.labelled import Split as Split
from isotropy.data.readers import read as read
from isotropy.equivariance.layouts import (
    Follows as Follows,
)
from isotropy.equivariance.layouts import (
    Grid as Grid,
)
from isotropy.equivariance.layouts import (
    Invariant as Invariant,
)
from isotropy.equivariance.layouts import (
    Layout as Layout,
)
from isotropy.equivariance.layouts import (
    Tokens as Tokens,
)
from isotropy.equivariance.lie_derivative import lie_derivative_penalty as lie_derivative_penalty
from isotropy.equivariance.testing import assert_equivariant as assert_equivariant
from isotropy.evidence.laplace import (
    EvidenceValue as EvidenceValue,
)
from isotropy.evidence.laplace import (
    NotFiniteError as NotFiniteError,
)
from isotropy.evidence.layers.settings import RelaxConfig as RelaxConfig
from isotropy.evidence.predictive import (
    Calibration as Calibration,
)
from isotropy.evidence.predictive import (
    Predictive as Predictive,
)
from isotropy.evidence.predictive import (
    calibration as calibration,
)
from isotropy.evidence.screening import Screening as Screening
from isotropy.evidence.settings import LearnConfig as LearnConfig
from isotropy.evidence.verdict import Verdict as Verdict
from isotropy.networks.averaging.augmentations import (
    Augmentation as Augmentation,
)
from isotropy.networks.averaging.augmentations import CorrelatedRanges as CorrelatedRanges
from isotropy.networks.averaging.augmentations import (
    Symmetry as Symmetry,
)
from isotropy.networks.averaging.augmentations import (
    UniformRanges as UniformRanges,
)
from isotropy.networks.averaging.invariant_model import InvariantModel as InvariantModel
from isotropy.networks.averaging.mixtures import (
    Mixture as Mixture,
)
from isotropy.networks.averaging.mixtures import (
    augmentation_over as augmentation_over,
)
from isotropy.networks.equivariant.emlp import EMLP as EMLP
from isotropy.networks.equivariant.linear import EquivariantLinear as EquivariantLinear
from isotropy.networks.export.laws import (
    as_kornia as as_kornia,
)
from isotropy.networks.export.laws import (
    as_torchvision as as_torchvision,
)
from isotropy.networks.export.laws import (
    augmentation_from_law as augmentation_from_law,
)
from isotropy.networks.export.program import export_model as export_model
from isotropy.networks.pathways.relax import harden as harden
from isotropy.networks.pathways.relax import relax as relax
from isotropy.networks.pathways.relaxed_layer import RelaxedLayer as RelaxedLayer
from isotropy.symmetry.actions.action import (
    Action as Action,
)
from isotropy.symmetry.actions.action import (
    Generator as Generator,
)
from isotropy.symmetry.actions.action import (
    compose as compose,
)
from isotropy.symmetry.actions.catalogue import actions_named as actions_named
from isotropy.symmetry.actions.finite import (
    Element as Element,
)
from isotropy.symmetry.actions.finite import (
    FiniteAction as FiniteAction,
)
from isotropy.symmetry.actions.finite import (
    RandomTransform as RandomTransform,
)
from isotropy.symmetry.actions.finite import (
    channel_permutations as channel_permutations,
)
from isotropy.symmetry.actions.finite import (
    flip as flip,
)
from isotropy.symmetry.actions.finite import (
    point_permutation as point_permutation,
)
from isotropy.symmetry.actions.finite import (
    point_reflection as point_reflection,
)
from isotropy.symmetry.actions.finite import (
    quarter_turns as quarter_turns,
)
from isotropy.symmetry.actions.finite import (
    reversal as reversal,
)
from isotropy.symmetry.actions.finite import (
    sign_change as sign_change,
)
from isotropy.symmetry.actions.images import AffineAction as AffineAction
from isotropy.symmetry.actions.images import affine as affine
from isotropy.symmetry.actions.intensity import intensity as intensity
from isotropy.symmetry.actions.linear import (
    LinearAction as LinearAction,
)
from isotropy.symmetry.actions.linear import (
    linear_action as linear_action,
)
from isotropy.symmetry.actions.linear import (
    matrix_elements as matrix_elements,
)
from isotropy.symmetry.actions.points import points as points
from isotropy.symmetry.actions.sequences import sequences as sequences
from isotropy.symmetry.groups.catalogue import group_named as group_named
from isotropy.symmetry.groups.group import Group as Group
from isotropy.symmetry.groups.representations import (
    Representation as Representation,
)
from isotropy.symmetry.groups.representations import (
    Scalar as Scalar,
)
from isotropy.symmetry.groups.representations import (
    T as T,
)
from isotropy.symmetry.groups.representations import (
    V as V,
)
from isotropy.workflows.basis import (
    BasisResult as BasisResult,
)
from isotropy.workflows.basis import (
    equivariant_basis as equivariant_basis,
)
from isotropy.workflows.building import BuildResult as BuildResult
from isotropy.workflows.building import build as build
from isotropy.workflows.estimators import (
    InvariantClassifier as InvariantClassifier,
)
from isotropy.workflows.estimators import (
    InvariantRegressor as InvariantRegressor,
)
from isotropy.workflows.learning import (
    LearnProgress as LearnProgress,
)
from isotropy.workflows.learning import (
    LearnResult as LearnResult,
)
from isotropy.workflows.learning import (
    learn as learn,
)
from isotropy.workflows.loading import load as load
from isotropy.workflows.measuring import (
    MeasureResult as MeasureResult,
)
from isotropy.workflows.measuring import (
    measure as measure,
)
from isotropy.workflows.measuring import (
    measured_actions as measured_actions,
)
from isotropy.workflows.profiling import ProfileResult as ProfileResult
from isotropy.workflows.profiling import profile as profile
from isotropy.workflows.relaxing import RelaxResult as RelaxResult
from isotropy.workflows.relaxing import learn_layers as learn_layers
from isotropy.workflows.screening import ScreenResult as ScreenResult
from isotropy.workflows.screening import screen as screen

__all__: list[str]
