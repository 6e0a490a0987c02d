"""The grammar of representations: what each text means, where a wrong one is wrong, and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isotropy.checks import CallerError
from isotropy.symmetry.groups.catalogue import SO
from isotropy.symmetry.groups.language import DEEPEST, parse_representation
from isotropy.symmetry.groups.representations import (
    Maps,
    P,
    Representation,
    Scalar,
    T,
    V,
    custom,
    irrep,
    of_factor,
)

OWN = custom("pair", lambda g: torch.kron(g, g))

MEANINGS = {
    "V": V,
    "V'": V.dual,
    "V''": V,
    "T(3)": V * V * V,
    "T(0)": Scalar,
    "T(2,1)": V * V * V.dual,
    "T( 2 , 1 )": T(2, 1),
    "V*V": V * V,
    "V*V'": V * V.dual,
    "V + V*V": V + V * V,
    "V*V+V": V * V + V,
    "3V": 3 * V,
    "3*V": 3 * V,
    "V*3": 3 * V,
    "3 V": 3 * V,
    "3V*V": 3 * (V * V),
    "V*3V": 3 * (V * V),
    "2*3V": 6 * V,
    "2(V + Scalar)": V + Scalar + V + Scalar,
    "(V + Scalar)*2": V + Scalar + V + Scalar,
    "(V + P)*(V + Scalar)": V * V + V + P * V + P,
    "V^3": T(3),
    "V^0": Scalar,
    "V'^2": T(0, 2),
    "(V + Scalar)^2": V * V + V + V + Scalar,
    "(V*V')'": V.dual * V,
    "2V^2": 2 * T(2),
    "Scalar": Scalar,
    "P": P,
    "5": 5 * Scalar,
    "5 + V": 5 * Scalar + V,
    "0": 0 * V,
    "0V": 0 * V,
    "irrep(2)": irrep(2),
    "irrep(0)": Scalar,
    "3irrep(2)*V": 3 * (irrep(2) * V),
    "V@0*V@1": of_factor(V, 0) * of_factor(V, 1),
    "T(2)@1'": of_factor(T(0, 2), 1),
    "2pair*V": 2 * (OWN * V),
}
MAPS = {
    "V >> V*V": V >> V * V,
    "3V + Scalar >> V' + 2": (3 * V + Scalar) >> (V.dual + 2 * Scalar),
    "V>>Scalar": V >> Scalar,
}


@pytest.mark.parametrize(("text", "meaning"), MEANINGS.items(), ids=MEANINGS)
def test_meaning(text: str, meaning: Representation) -> None:
    found = parse_representation(text, {"pair": OWN})
    assert isinstance(found, Representation)
    assert found == meaning
    assert not found.is_bound


@pytest.mark.parametrize(("text", "meaning"), MAPS.items(), ids=MAPS)
def test_maps(text: str, meaning: Maps) -> None:
    found = parse_representation(text)
    assert isinstance(found, Maps)
    assert (found.source, found.target) == (meaning.source, meaning.target)
    assert found == meaning
    assert found != meaning.target >> meaning.source


WRONG = {
    "V >> *V": "expected a factor at position 6 of 'V >> \\*V', got '\\*'",
    "V >> V >> V": "expected .* or the end at position 8 of .*, got '>>'",
    "V V": "expected '\\*', '\\+', '>>' or the end at position 3 of 'V V', got 'V'",
    "": "expected a factor at position 1 of '', got the end",
    "V +": "expected a factor at position 4 of .*, got the end",
    "(V": "expected '\\)' at position 3 of .*, got the end",
    "V)": "or the end at position 2 of .*, got '\\)'",
    "(V >> V)": "expected '\\)' at position 4 of .*, got '>>'",
    "T": "expected '\\(' at position 2 of 'T', got the end",
    "T()": "expected a number for T at position 3 of .*, got '\\)'",
    "T(1,2,3)": "expected '\\)' at position 6 of .*, got ','",
    "irrep(1,2)": "expected '\\)' at position 8 of .*, got ','",
    "T(-1)": "expected a number for T at position 3 of .*, got '-'",
    "V^": "expected a power at position 3 of .*, got the end",
    "V^V": "expected a power at position 3 of .*, got 'V'",
    "3^2": "at position 2 of '3\\^2', got '\\^'",
    "V^65": "expected a power of at most 64 at position 3 of .*, got 65",
    "V > V": "or the end at position 3 of 'V > V', got '>'",
    "W": "unknown representation 'W' at position 1 of 'W': expected one of V, Scalar, P",
    "V + scalar": "unknown .* at position 5 of .*did you mean 'Scalar'\\?",
    "V2": "unknown representation 'V2' at position 1",
    "12345678901V": "expected a number of at most 9 digits at position 1",
    "999999(V + P)": "a sum of 1,999,998 terms",
    "(V + P)^30": "terms: expected at most",
    "(" * (DEEPEST + 1) + "V": f"at most {DEEPEST} parentheses",
}


@pytest.mark.parametrize(("text", "complaint"), WRONG.items(), ids=[each[:20] for each in WRONG])
def test_errors_point_at_the_place(text: str, complaint: str) -> None:
    with pytest.raises(CallerError, match=complaint):
        parse_representation(text)


@pytest.mark.parametrize("name", ["V", "irrep"])
def test_own_names_do_not_replace_the_words_of_the_language(name: str) -> None:
    with pytest.raises(CallerError, match="expected names other than"):
        parse_representation("V", {name: OWN})


ATOMS = st.sampled_from(
    [
        V,
        V.dual,
        P,
        Scalar,
        irrep(2),
        irrep(3),
        OWN,
        OWN.dual,
        of_factor(V, 1),
        of_factor(T(0, 1), 0),
    ]
)
REPRESENTATIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] + pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] * pair[1]),
        st.tuples(st.integers(0, 4), inner).map(lambda pair: pair[0] * pair[1]),
        st.tuples(inner, st.integers(0, 3)).map(lambda pair: pair[0] ** pair[1]),
        inner.map(lambda each: each.dual),
    ),
    max_leaves=4,
)


@given(REPRESENTATIONS)
def test_reads_what_is_written(representation: Representation) -> None:
    assert parse_representation(str(representation), {"pair": OWN}) == representation


@given(REPRESENTATIONS, REPRESENTATIONS)
def test_reads_maps_that_are_written(source: Representation, target: Representation) -> None:
    assert parse_representation(str(source >> target), {"pair": OWN}) == source >> target


def test_what_is_read_can_be_bound() -> None:
    found = parse_representation("V + irrep(2) >> V*V")(SO(3))
    assert isinstance(found, Maps)
    assert found.size == 8 * 9
    assert str(found) == "V + irrep(2) >> V*V"
