"""`python -m benchmarks [NAME …]`: the named benchmarks, or every one, one after the other.

What follows the names goes to each of them: `--json`, `--rounds`, `--out FOLDER`.
"""

from __future__ import annotations

import sys

from benchmarks import (
    ablation,
    basis,
    bound,
    built_networks,
    deep_networks,
    distributed,
    elbo,
    equivariant_networks,
    evidence,
    frozen_backbone,
    large_layers,
    lie_derivative,
    orbit_training,
    pathways,
    projectors,
    streaming,
    warp,
)

BENCHMARKS = {
    "ablation": ablation.main,
    "basis": basis.main,
    "bound": bound.main,
    "built_networks": built_networks.main,
    "deep_networks": deep_networks.main,
    "distributed": distributed.main,
    "elbo": elbo.main,
    "equivariant_networks": equivariant_networks.main,
    "evidence": evidence.main,
    "frozen_backbone": frozen_backbone.main,
    "large_layers": large_layers.main,
    "lie_derivative": lie_derivative.main,
    "orbit_training": orbit_training.main,
    "pathways": pathways.main,
    "projectors": projectors.main,
    "streaming": streaming.main,
    "warp": warp.main,
}

if __name__ == "__main__":
    words = sys.argv[1:]
    named = [word for word in words if word in BENCHMARKS]
    sys.argv[1:] = [word for word in words if word not in BENCHMARKS]
    for name in named or BENCHMARKS:
        BENCHMARKS[name]()
