"""How zones are shown: to everybody by name, to operators with their hosts and services."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.compute.api import api
from kilonova.hosts.heartbeat import is_up
from kilonova.http import View, col
from kilonova.store import Row

api.view(
    View(
        "zone",
        {
            "zoneName": col("name", {"type": "string"}),
            "zoneState": col("state", {"type": "object", "properties": {"available": {"type": "boolean"}}}),
            "hosts": col("hosts", {"type": ["object", "null"]}),
        },
    )
)


def by_zone(services: list[Row]) -> dict[str, list[Row]]:
    """Zones with an enabled service come first, each kind in the order of names."""
    zones: dict[str, list[Row]] = {}
    for service in services:
        zones.setdefault(service["zone"], []).append(service)
    return dict(sorted(zones.items(), key=lambda item: (not available(item[1]), item[0])))


def available(services: list[Row]) -> bool:
    return any(not service["disabled"] for service in services)


def row(name: str, services: list[Row], hosts: Any = None) -> dict[str, Any]:
    return {"name": name, "state": {"available": available(services)}, "hosts": hosts}


def hosts(services: list[Row], now: float, down_seconds: float) -> dict[str, dict[str, Any]] | None:
    """Host, then service, then its state; a zone that is not available shows none."""
    if not available(services):
        return None
    shown: dict[str, dict[str, Any]] = {}
    for service in services:
        shown.setdefault(service["host"], {})[service["program"]] = {
            "active": not service["disabled"],
            "available": is_up(service, now, down_seconds),
            "updated_at": clock.iso_micro(service["last_seen_at"]),
        }
    return shown
