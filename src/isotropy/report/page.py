"""What all pages share: the templates, the key numbers on top, the settings at the end.

A page is made of small objects of text and numbers ready to print; the words between them and the
looks are in `templates/`. Nothing on a page depends on the time or place it was written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from isotropy.report.wording import MISSING

_TEMPLATES = Path(__file__).parent / "templates"

SettingsGroup = tuple[str, list[tuple[str, str]]]


@dataclass(frozen=True)
class KeyNumber:
    """One of the numbers at the top of the page, and a note on how to take it."""

    name: str
    value: str
    note: str


@dataclass(frozen=True)
class Drawing:
    """An inline SVG with the words that go above it; width: the most in CSS pixels, or 0."""

    title: str
    note: str
    svg: Markup
    width: int = 0


def render(template: str, **context: Any) -> str:
    """The page of a template; text in the context is escaped, a missing name is an error."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**context)


def settings_groups(
    result: Mapping[str, Any], config: Mapping[str, Any], *, run: Mapping[str, Any]
) -> list[SettingsGroup]:
    """(group, [(setting, value), …]): the run itself first, then each part of the config.

    run: what the page tells of the run besides seed, device, versions and folder
    """
    told: dict[str, Any] = {
        "command": f"isotropy {result.get('command') or ''}".strip(),
        **{name: result.get(name) for name in ("seed", "device")},
        **run,
        "isotropy": result.get("isotropy"),
        **(result.get("versions") or {}),
        "commit": result.get("commit"),
        "run folder": result.get("run_folder"),
    }
    loose = {name: value for name, value in config.items() if not isinstance(value, Mapping)}
    if "command" in loose:
        told["command"] = loose.pop("command")
    groups: list[tuple[str, Mapping[str, Any]]] = [("run", told | loose)]
    groups += [(name, value) for name, value in config.items() if isinstance(value, Mapping)]
    return [(name, flat_settings(values)) for name, values in groups if values]


def flat_settings(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested settings as (dotted name, text)."""
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            rows += flat_settings(value, f"{before}{name}.")
        else:
            rows.append((f"{before}{name}", _setting_text(value)))
    return rows


def _setting_text(value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    simple = (str, int, float, type(None))
    if isinstance(value, list | tuple) and all(isinstance(each, simple) for each in value):
        return ", ".join(_setting_text(item) for item in value) or MISSING
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping | list) else str(value)
