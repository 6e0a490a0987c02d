"""A Laplace fit as named tensors and JSON, for checkpoints of runs that reuse it.

statistic, norm/NAME, spectrum/BLOCK/FIELD      tensors
{"count": …, "sizes": {NAME: …}, "spectra": {BLOCK: {"kind": …, other fields}}}      JSON
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from isotropy.curvature.batches import AnySpectrum
from isotropy.curvature.joint import JointSpectrum
from isotropy.curvature.kronecker import DenseSpectrum, DiagonalSpectrum, KroneckerSpectrum
from isotropy.evidence.laplace import LaplaceFit

_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (KroneckerSpectrum, DenseSpectrum, DiagonalSpectrum, JointSpectrum)
}


def fit_state(fit: LaplaceFit) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and the rest."""
    tensors = {"statistic": fit.statistic}
    tensors |= {f"norm/{name}": norm for name, norm in fit.squared_norms.items()}
    spectra: dict[str, dict[str, Any]] = {}
    for block, spectrum in fit.spectra.items():
        spectra[block] = {"kind": type(spectrum).__name__}
        for name in (field.name for field in fields(_KINDS[type(spectrum).__name__])):
            value = getattr(spectrum, name)
            if isinstance(value, Tensor):
                tensors[f"spectrum/{block}/{name}"] = value
            else:
                spectra[block][name] = value
    return tensors, {"count": fit.count, "sizes": fit.sizes, "spectra": spectra}


def fit_from_state(
    tensors: Mapping[str, Tensor], record: Mapping[str, Any], device: torch.device
) -> LaplaceFit:
    """What `fit_state` was made from, on `device`."""
    spectra: dict[str, AnySpectrum] = {}
    for block, entry in record["spectra"].items():
        prefix = f"spectrum/{block}/"
        own = {
            name.removeprefix(prefix): tensor.to(device)
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        rest = {name: value for name, value in entry.items() if name != "kind"}
        spectra[block] = _KINDS[entry["kind"]](**own, **rest)
    return LaplaceFit(
        spectra=spectra,
        squared_norms={
            name.removeprefix("norm/"): tensor.to(device)
            for name, tensor in tensors.items()
            if name.startswith("norm/")
        },
        sizes=dict(record["sizes"]),
        statistic=tensors["statistic"].to(device),
        count=int(record["count"]),
    )
