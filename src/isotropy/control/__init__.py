"""Policies and value functions with hard and soft symmetries, for stable-baselines3.

groups.py     groups of signed permutations of observations and actions, and what breaks them
networks.py   hard and soft layers of such groups
policies.py   SoftSACPolicy, SoftTD3Policy and SoftPPOPolicy; needs the extra rl
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from isotropy.control.groups import SignedGroup, ViolationWarning, group_named, group_violation
from isotropy.control.networks import softness

POLICIES = ("SoftPPOPolicy", "SoftSACPolicy", "SoftTD3Policy")
__all__ = [
    "SignedGroup",
    "SoftPPOPolicy",
    "SoftSACPolicy",
    "SoftTD3Policy",
    "ViolationWarning",
    "group_named",
    "group_violation",
    "softness",
]


def __getattr__(name: str) -> Any:
    """Policies, which need stable-baselines3, when they are asked for."""
    if name not in POLICIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("isotropy.control.policies"), name)
