"""Compares the extra specs of a volume type with the capabilities of the back end."""

from __future__ import annotations

from collections.abc import Mapping

from kilonova.operations import Failed
from kilonova.scheduler.extra_spec_rules import describe_rule, satisfies
from kilonova.store import Reader
from kilonova.volume.backend_capabilities import CAPABILITIES
from kilonova.volume.types import model

_SCOPE = "capabilities"
_IS = "<is>"
_UNMET = "unmet extra specs: "


async def check(reader: Reader, type_id: str) -> None:
    """Raises Failed if the back end does not meet the type. Only operators see the unmet extra specs."""
    volume_type = await model.get_any(reader, type_id)
    missed = unmet_specs(volume_type.extra_specs) if volume_type else {}
    if volume_type and missed:
        raise Failed(
            "Could not find any available weighted backend: no back end meets the extra specs of type"
            f" {volume_type.name}.",
            fault=_UNMET + ", ".join(describe_rule(key, rule) for key, rule in sorted(missed.items())),
        )


def is_unmet(error: Failed) -> bool:
    return error.fault is not None and error.fault.startswith(_UNMET)


def unmet_specs(extra_specs: Mapping[str, str | None]) -> dict[str, str]:
    """The extra specs that the back end does not meet. Ignores null, and other scopes than `capabilities:`."""
    specs = {key.removeprefix(f"{_SCOPE}:"): rule for key, rule in extra_specs.items() if rule is not None}
    return {key: rule for key, rule in specs.items() if ":" not in key and not _meets(CAPABILITIES.get(key), rule)}


def _meets(value: object, rule: str) -> bool:
    """An unknown capability counts as false."""
    operator, *wanted = rule.split() or [""]
    if operator == _IS:
        return bool(value) == (" ".join(wanted).lower() == "true")
    return value is not None and satisfies(value, rule)
