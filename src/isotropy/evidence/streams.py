"""Independent streams of random numbers, addressed by name and step.

Every draw of a run comes from a generator made anew from (seed, purpose, step). A resumed
run therefore draws what the uninterrupted one would have drawn, with no state to save, and
changing how often one purpose draws leaves the others as they were.
"""

from __future__ import annotations

import hashlib

import torch


def stream(
    seed: int, purpose: str, step: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A fresh generator for this purpose and step."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{step}".encode()).digest()
    generator = torch.Generator(device=device)
    generator.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return generator
