"""Isotropy: find out which symmetries your data has, how much, and build exactly that in.

    result = isotropy.learn(network, (images, labels))
    print(result.symmetries)

A name is imported from its room when it is first asked for; `__init__.pyi` tells editors and type
checkers what it is.
"""

from importlib import import_module
from typing import Any

from isotropy._version import __version__

_ROOMS = {
    "checks": "CallerError",
    "curvature.blocks": "DenseRoots DiagonalRoots KroneckerRoots",
    "curvature.kinds": "Copies",
    "curvature.layer_rules": "LayerRule Use register_rule",
    "data.labelled": "LabelledData Split",
    "data.readers": "read",
    "equivariance.layouts": "Follows Grid Invariant Layout Tokens",
    "equivariance.lie_derivative": "lie_derivative_penalty",
    "equivariance.testing": "assert_equivariant",
    "evidence.laplace": "EvidenceValue NotFiniteError",
    "evidence.layers.settings": "RelaxConfig",
    "evidence.predictive": "Calibration Predictive calibration",
    "evidence.screening": "Screening",
    "evidence.settings": "LearnConfig",
    "evidence.verdict": "Verdict",
    "networks.averaging.augmentations": "Augmentation CorrelatedRanges Symmetry UniformRanges",
    "networks.averaging.invariant_model": "InvariantModel",
    "networks.averaging.mixtures": "Mixture augmentation_over",
    "networks.equivariant.emlp": "EMLP",
    "networks.equivariant.linear": "EquivariantLinear",
    "networks.export.laws": "as_kornia as_torchvision augmentation_from_law",
    "networks.export.program": "export_model",
    "networks.pathways.relax": "harden relax",
    "networks.pathways.relaxed_layer": "RelaxedLayer",
    "symmetry.actions.action": "Action Generator compose",
    "symmetry.actions.catalogue": "actions_named",
    "symmetry.actions.finite": (
        "Element FiniteAction RandomTransform channel_permutations flip point_permutation "
        "point_reflection quarter_turns reversal sign_change"
    ),
    "symmetry.actions.images": "AffineAction affine",
    "symmetry.actions.intensity": "intensity",
    "symmetry.actions.linear": "LinearAction linear_action matrix_elements",
    "symmetry.actions.points": "points",
    "symmetry.actions.sequences": "sequences",
    "symmetry.groups.catalogue": "group_named",
    "symmetry.groups.group": "Group",
    "symmetry.groups.representations": "Representation Scalar T V",
    "workflows.basis": "BasisResult equivariant_basis",
    "workflows.building": "BuildResult build",
    "workflows.estimators": "InvariantClassifier InvariantRegressor",
    "workflows.learning": "LearnProgress LearnResult learn",
    "workflows.loading": "load",
    "workflows.measuring": "MeasureResult measure measured_actions",
    "workflows.profiling": "ProfileResult profile",
    "workflows.relaxing": "RelaxResult learn_layers",
    "workflows.screening": "ScreenResult screen",
}
"""Where public names are, by module."""
_MODULES = {name: module for module, names in _ROOMS.items() for name in names.split()}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'isotropy' has no attribute {name!r}")
    found = getattr(import_module(f"isotropy.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
