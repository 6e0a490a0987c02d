"""Evidence values: a difference only between values of the same thing."""

from __future__ import annotations

import dataclasses
import json

import pytest

from isotropy.checks import CallerError
from isotropy.evidence.laplace import EvidenceValue

VALUE = EvidenceValue(
    nats=-120.5, examples=40, curvature="kfac-ggn", samples=8, prior_structure="scalar",
    noise_seed="0/final/3", data="abc",
)  # fmt: skip

OTHER = {
    "examples": 41,
    "curvature": "kfac-ef",
    "samples": 9,
    "prior_structure": "layer",
    "noise_seed": "1/final/3",
    "data": "abd",
}


def test_a_difference_of_models_is_a_number():
    better = dataclasses.replace(VALUE, nats=-100.25)
    assert better - VALUE == 20.25 and VALUE - better == -20.25
    assert VALUE - VALUE == 0.0


def test_every_field_has_a_case():
    assert {field.name for field in dataclasses.fields(EvidenceValue)} == {*OTHER, "nats"}


@pytest.mark.parametrize("name", OTHER)
def test_anything_else_that_differs_is_named(name: str):
    other = dataclasses.replace(VALUE, **{name: OTHER[name]})
    words = name.replace("_", " ")
    for left, right in ((VALUE, other), (other, VALUE)):
        with pytest.raises(CallerError, match=f"evidences differ in {words}: ") as refused:
            left - right
        assert repr(OTHER[name]) in str(refused.value)
        assert repr(getattr(VALUE, name)) in str(refused.value)


@pytest.mark.parametrize("other", [1.0, 3, None, "log Z"])
def test_a_bare_number_is_not_comparable(other: object):
    with pytest.raises(TypeError):
        VALUE - other  # type: ignore[operator]
    with pytest.raises(TypeError):
        other - VALUE  # type: ignore[operator]


def test_per_example():
    assert VALUE.per_example == -120.5 / 40


def test_as_a_record():
    record = json.loads(json.dumps(VALUE.as_dict()))
    assert EvidenceValue(**record) == VALUE
