"""Errors and error codes that several resources of the Placement API share."""

from __future__ import annotations

from kilonova.http.errors import Conflict, NotFound
from kilonova.placement.model import ResourceProvider

CONCURRENT_UPDATE = "placement.concurrent_update"
DUPLICATE_NAME = "placement.duplicate_name"
INVENTORY_IN_USE = "placement.inventory.inuse"
PROVIDER_IN_USE = "placement.resource_provider.inuse"
PROVIDER_IS_PARENT = "placement.resource_provider.cannot_delete_parent"
PROVIDER_NOT_FOUND = "placement.resource_provider.not_found"
BAD_VALUE = "placement.query.bad_value"
DUPLICATE_KEY = "placement.query.duplicate_key"
MISSING_VALUE = "placement.query.missing_value"


def provider_not_found(uuid: str, purpose: str = "") -> NotFound:
    return NotFound(f"No resource provider with uuid {uuid[:255]} found{purpose}")


def generation_conflict(provider: ResourceProvider, given: int) -> Conflict:
    return Conflict(
        "Resource provider's generation already changed. Please update the generation and try again. "
        f"(resource provider generation conflict on {provider.uuid}: actual: {provider.generation}, "
        f"given: {given})",
        code=CONCURRENT_UPDATE,
    )
