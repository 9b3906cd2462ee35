"""What types ask of the back end, by those of their extra specs that are about it."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.operations import Failed
from kilonova.scheduler.matching import in_words, satisfies
from kilonova.store import Reader
from kilonova.volume.backend import CAPABILITIES

_SCOPE = "capabilities"
_IS = "<is>"
_UNMET = "unmet extra specs: "


async def check(reader: Reader, type_id: str) -> None:
    """Raises Failed where the back end is not what the type asks for. Which of its specs it is, operators see."""
    row = await reader.fetch_one("SELECT name, extra_specs FROM volume_types WHERE id = $1", type_id)
    missed = unmet(orjson.loads(row["extra_specs"])) if row else {}
    if row and missed:
        raise Failed(
            f"Could not find any available weighted backend: there is none of the kind that type {row['name']} asks"
            " for.",
            fault=_UNMET + ", ".join(in_words(key, rule) for key, rule in sorted(missed.items())),
        )


def is_unmet(error: Failed) -> bool:
    return isinstance(error.fault, str) and error.fault.startswith(_UNMET)


def unmet(extra_specs: dict[str, str]) -> dict[str, str]:
    """Those that the back end does not meet. Specs of other scopes than `capabilities:` are none of its business."""
    asked = {key.removeprefix(f"{_SCOPE}:"): rule for key, rule in extra_specs.items()}
    return {key: rule for key, rule in asked.items() if ":" not in key and not _meets(CAPABILITIES.get(key), rule)}


def _meets(value: Any, rule: str) -> bool:
    """What nobody says of the back end is not so."""
    operator, *wanted = rule.split() or [""]
    if operator == _IS:
        return bool(value) == (" ".join(wanted).lower() == "true")
    return value is not None and satisfies(value, rule)
