"""Hosts of aggregates that have an image property in their metadata reject images with another value of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason, Reasons, all_of
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Host, Hosts, Mask


def _fits(key: str, value: str, hosts: Hosts) -> Mask:
    aggregates, settings = hosts.aggregates, hosts.settings
    values_by_aggregate = aggregates.having(key)
    namespace = settings.aggregate_image_properties_isolation_namespace
    if namespace and not key.startswith(namespace + settings.aggregate_image_properties_isolation_separator):
        return hosts.everywhere
    if not values_by_aggregate:
        return hosts.everywhere

    def make() -> Mask:
        matching = [number for number, values in values_by_aggregate.items() if value in _values(values)]
        return ~aggregates.union(values_by_aggregate) | aggregates.union(matching)

    return aggregates.keep(("image", key, value), make)


def _values(text: str) -> list[str]:
    return [value.strip() for value in text.split(",")]


def _have(key: str, host: Host) -> str:
    return ", ".join(f"{key}={metadata[key]}" for metadata in host.aggregates if key in metadata)


def _reason(key: str, value: str) -> Reason:
    return Reason(
        "reserved for images with another " + key,
        need=lambda _: f"{key}={value}",
        have=lambda _, host: _have(key, host),
        applies=lambda _, hosts: ~_fits(key, value, hosts),
    )


reason = Reasons(lambda request: [_reason(key, value) for key, value in request.image_properties.items()])

on_rebuild = True


def passes(request: Request, hosts: Hosts) -> Mask:
    return all_of(hosts, (_fits(key, value, hosts) for key, value in request.image_properties.items()))
