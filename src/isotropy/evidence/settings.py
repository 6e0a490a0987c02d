"""Settings written as FIELD=VALUE: any field of `LearnConfig`, for command lines and experiments.

Values are JSON (numbers, true, objects) and words as they are: `augerino_weight=0.1`,
`curvature=kfac-ef`, `caps={"rotation": 90}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from isotropy.checks import CallerError, check_choice
from isotropy.evidence.schedule import LearnConfig

KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "bool": (bool,),
    "float": (float,),
    "Mapping": (dict,),
}
"""What a field's annotation begins with, and what its value must be; all others are words."""


def settings_from(texts: Iterable[str]) -> dict[str, Any]:
    """Values by field of `LearnConfig`; a field written twice has its last value.

    >>> settings_from(["augerino_weight=1", "curvature=kfac-ef"])
    {'augerino_weight': 1.0, 'curvature': 'kfac-ef'}

    Raises CallerError for an unknown field and a value of another kind. Whether the value makes
    sense is for `LearnConfig.check` to say.
    """
    annotations = {field.name: str(field.type) for field in fields(LearnConfig)}
    found: dict[str, Any] = {}
    for text in texts:
        name, separator, written = text.partition("=")
        if not separator:
            raise CallerError(f"setting: expected FIELD=VALUE, got {text!r}")
        annotation = annotations[check_choice(name, annotations, what="setting")]
        kinds = next((KINDS[key] for key in KINDS if annotation.startswith(key)), (str,))
        value: Any = written if kinds == (str,) else _read(written)
        if kinds == (float,) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kinds) or isinstance(value, bool) != (kinds == (bool,)):
            wanted = {
                int: "a whole number",
                bool: "true or false",
                float: "a number",
                dict: "a JSON object",
            }[kinds[0]]
            raise CallerError(f"setting {name}: expected {wanted}, got {written!r}")
        found[name] = value
    return found


def _read(written: str) -> Any:
    try:
        return json.loads(written)
    except ValueError:
        return written
