"""Evidence values that know what they are values of.

A log evidence is comparable only with one of the same data, curvature, number of copies, prior
structure and noise: the curvature's approximation error and the Monte-Carlo error of the average
are then common to both and cancel. `EvidenceValue` carries these, and subtracting two that
differ is refused.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from isotropy.checks import CallerError


@dataclass(frozen=True)
class EvidenceValue:
    """log Z in nats over `examples` examples, and what it depends on besides the model.

    curvature        kind, such as kfac-ggn
    samples          copies averaged (S)
    prior_structure  scalar, layer, tensor or declared
    noise_seed       which draws of the noise (and of labels, for a Monte-Carlo Fisher)
    data             a fingerprint of the training data
    """

    nats: float
    examples: int
    curvature: str
    samples: int
    prior_structure: str
    noise_seed: str
    data: str = ""

    def __sub__(self, other: EvidenceValue) -> float:
        """The difference in nats; refused if anything but the model differs."""
        if not isinstance(other, EvidenceValue):
            return NotImplemented
        for field in fields(self):
            here, there = getattr(self, field.name), getattr(other, field.name)
            if field.name != "nats" and here != there:
                raise CallerError(
                    f"evidences differ in {field.name.replace('_', ' ')}: {here!r} and {there!r}; "
                    "their difference would compare approximations, not models; compute both "
                    "with the same"
                )
        return self.nats - other.nats

    @property
    def per_example(self) -> float:
        """Nats per example."""
        return self.nats / self.examples

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
