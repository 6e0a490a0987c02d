"""Isotropy: find out which symmetries your data has, how much, and build exactly that in.

    result = isotropy.learn(network, (images, labels))
    print(result.symmetries)

These names are the verbs, their settings and results, and the objects that users write. All others
are imported from their modules, which `docs/reference.md` lists. A name is imported from its room
when it is first asked for; `__init__.pyi` tells editors and type checkers what it is.
"""

from importlib import import_module
from typing import Any

from isotropy._version import __version__

_ROOMS = {
    "checks": "CallerError",
    "data.labelled": "LabelledData",
    "data.readers": "read",
    "data.streams.streamed": "streamed",
    "equivariance.lie_derivative": "lie_derivative_penalty",
    "equivariance.testing": "assert_equivariant",
    "evidence.layers.settings": "RelaxConfig",
    "evidence.settings": "LearnConfig",
    "networks.averaging.invariant_model": "InvariantModel",
    "networks.equivariant.emlp": "EMLP",
    "networks.equivariant.linear": "EquivariantLinear",
    "networks.folding": "fold",
    "networks.pathways.harden": "harden",
    "report.loggers": "log_to",
    "symmetry.actions.action": "Action Generator compose",
    "symmetry.actions.catalogue": "actions_named",
    "symmetry.actions.finite": "FiniteAction flip quarter_turns",
    "symmetry.actions.images": "affine intensity",
    "symmetry.actions.points": "points",
    "symmetry.actions.sequences": "sequences",
    "symmetry.groups.catalogue": "group_named",
    "symmetry.groups.group": "Group",
    "symmetry.groups.representations": "Representation Scalar T V",
    "workflows.basis": "equivariant_basis",
    "workflows.building": "BuildResult build",
    "workflows.certifying": "CertifyConfig CertifyResult certify verify",
    "workflows.estimators": "InvariantClassifier InvariantEncoder InvariantRegressor",
    "workflows.exploring": "profile screen",
    "workflows.learning": "LearnResult learn",
    "workflows.loading": "load",
    "workflows.measuring": "MeasureResult measure",
    "workflows.relaxing": "RelaxResult learn_layers relax",
    "workflows.representing": "RepresentConfig RepresentResult represent",
    "workflows.runs.result": "Result",
    "workflows.story": "StoryConfig StoryResult story",
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
