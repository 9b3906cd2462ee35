"""Checks of settings beyond their types."""

from __future__ import annotations

from collections.abc import Iterable

from kilonova.config_names import ConfigError

# Shown for services that run no servers.
INTERNAL_ZONE = "internal"


def check_zones(setting: str, zones: Iterable[str]) -> None:
    """Check names of availability zones by the rules of the API."""
    for zone in zones:
        _check_zone(setting, zone)


def _check_zone(setting: str, zone: str) -> None:
    if zone == INTERNAL_ZONE:
        raise ConfigError(f"Configuration: {setting}: {INTERNAL_ZONE} is the zone of internal services")
    if not (0 < len(zone) <= 255 and ":" not in zone and zone.isprintable() and zone == zone.strip()):
        raise ConfigError(
            f"Configuration: {setting}: names of zones have 1 to 255 printable characters and no colon, found {zone!r}"
        )


def check_instance_names(template: str) -> None:
    """Check that names by this template depend on the uuid of the server, and are short enough."""
    try:
        names = {template % {"uuid": digit * 36} for digit in "0f"}
    except (KeyError, TypeError, ValueError):
        names = set()
    if len(names) != 2 or any(len(name) > 255 or not name.isprintable() for name in names):
        raise ConfigError(
            "Configuration: compute.instance_name_template: expected a text of at most 255 printable characters with"
            f" %(uuid)s or a part of it, such as instance-%(uuid).8s, found {template[:300]!r}"
        )
