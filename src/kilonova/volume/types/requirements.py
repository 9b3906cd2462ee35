"""Compares the extra specs of a volume type with the capabilities of the back end."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.operations import Failed
from kilonova.scheduler.extra_spec_rules import describe_rule, satisfies
from kilonova.store import Reader
from kilonova.volume.backend_capabilities import CAPABILITIES

_SCOPE = "capabilities"
_IS = "<is>"
_UNMET = "unmet extra specs: "


async def check(reader: Reader, type_id: str) -> None:
    """Raises Failed if the back end does not meet the type. Only operators see the unmet extra specs."""
    row = await reader.fetch_one("SELECT name, extra_specs FROM volume_types WHERE id = $1", type_id)
    missed = unmet_specs(orjson.loads(row["extra_specs"])) if row else {}
    if row and missed:
        raise Failed(
            f"Could not find any available weighted backend: no back end meets the extra specs of type {row['name']}.",
            fault=_UNMET + ", ".join(describe_rule(key, rule) for key, rule in sorted(missed.items())),
        )


def is_unmet(error: Failed) -> bool:
    return isinstance(error.fault, str) and error.fault.startswith(_UNMET)


def unmet_specs(extra_specs: dict[str, str]) -> dict[str, str]:
    """The extra specs that the back end does not meet. Other scopes than `capabilities:` are ignored."""
    specs = {key.removeprefix(f"{_SCOPE}:"): rule for key, rule in extra_specs.items()}
    return {key: rule for key, rule in specs.items() if ":" not in key and not _meets(CAPABILITIES.get(key), rule)}


def _meets(value: Any, rule: str) -> bool:
    """An unknown capability counts as false."""
    operator, *wanted = rule.split() or [""]
    if operator == _IS:
        return bool(value) == (" ".join(wanted).lower() == "true")
    return value is not None and satisfies(value, rule)
