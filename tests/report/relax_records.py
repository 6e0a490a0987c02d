"""A made-up record of `isotropy relax`, with the real shape: eight layers, any pathways."""

from __future__ import annotations

from typing import Any

from report_pages import PROVENANCE

LAYERS = 8
EPOCHS = 40
FREE = 6
"""The layer that became fully connected, as in Table 4 of the paper."""


RESTS = (3e-8, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
"""What the pathways that a layer did not become share."""


def _main(place: int, kinds: tuple[str, ...]) -> str:
    return kinds[0] if place == FREE else "conv"


def shares(kinds: tuple[str, ...], main: str, rest: float) -> dict[str, float]:
    """`main` has all but `rest`, which the others divide evenly."""
    others = len(kinds) - 1
    return {kind: 1 - rest if kind == main else rest / others for kind in kinds}


def relaxed_layer(name: str, kinds: tuple[str, ...], main: str, rest: float) -> dict[str, Any]:
    effective = shares(kinds, main, rest)
    tensors = {kind: ("readout", "spread") if kind == "ffc" else ("weight",) for kind in kinds}
    precision = {kind: 230.75 if kind == main else 22690960.0 for kind in kinds}
    return {
        "name": name,
        "became": " + ".join(kind for kind in kinds if effective[kind] >= 0.1),
        "effective": effective,
        "normalised": {kind: 0.5 * share for kind, share in effective.items()},
        "parameters": {kind: 3600 if kind == "conv" else 614400 for kind in kinds},
        "prior_precision": precision,
        "weight_norm": {kind: 10.7425 if kind == main else 1.3e-9 for kind in kinds},
        "contribution": {kind: 0.98 if kind == main else 0.02 for kind in kinds},
        "bias_map": 0.03,
        "precisions": {
            f"{kind}.{tensor}": precision[kind] for kind in kinds for tensor in tensors[kind]
        },
    }


def relaxed_epoch(epoch: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Every fifth epoch knows the shares and the evidence, every fourth the scores."""
    after, scored = epoch % 5 == 0, epoch % 4 == 0
    rest = 0.5 * 0.9**epoch
    return {
        "epoch": epoch,
        "train_loss": 2.3 * 0.93**epoch,
        "train_accuracy": 1 - 0.9 * 0.93**epoch,
        "log_evidence": -2000 * (0.9 + 2 * 0.9**epoch) if after else None,
        "test_accuracy": 0.97 - 0.8 * 0.93**epoch if scored else None,
        "test_nll": 0.1 + 2.2 * 0.93**epoch if scored else None,
        "seconds": 5.0 * epoch,
        "layers": [
            {
                "name": f"stage{place + 1}",
                "effective": shares(kinds, _main(place, kinds), rest),
            }
            for place in range(LAYERS)
        ]
        if after
        else None,
    }


def relax_record(kinds: tuple[str, ...] = ("ffc", "conv"), **changes: Any) -> dict[str, Any]:
    """Seven layers became convolutions, the one before the last its first pathway."""
    return {
        "schema": 1,
        "kind": "relax",
        **PROVENANCE,
        "command": "relax",
        "data": {"name": "digits in quadrants", "notes": ["2000 images that come with it"]},
        "train_examples": 2000,
        "test_examples": 1000,
        "task": "digit-quadrant",
        "pathways": list(kinds),
        "width": 4,
        "group": "C(4)" if "gconv" in kinds else None,
        "objective": "laplace",
        "curvature": "kfac-ggn",
        "config": {"objective": "laplace", "epochs": EPOCHS, "prior_rate": 0.1, "seed": 0},
        "num_parameters": 1771945,
        "test_accuracy": 0.9612,
        "test_nll": 0.1374,
        "log_evidence": -1834.2,
        "log_evidence_per_example": -0.9171,
        "layers": [
            relaxed_layer(f"stage{place + 1}", kinds, _main(place, kinds), rest)
            for place, rest in enumerate(RESTS)
        ],
        "epochs": [relaxed_epoch(epoch, kinds) for epoch in range(1, EPOCHS + 1)],
        "hardened": {"num_parameters": 402030, "test_accuracy": 0.961, "test_nll": 0.138},
        "notes": [],
        **changes,
    }  # fmt: skip
