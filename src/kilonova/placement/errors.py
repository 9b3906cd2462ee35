"""Errors of the Placement API that several nouns share, with the codes by which programs tell them apart."""

from __future__ import annotations

from kilonova.http.errors import BadRequest, Conflict, NotFound

CONCURRENT_UPDATE = "placement.concurrent_update"
DUPLICATE_NAME = "placement.duplicate_name"
INVENTORY_IN_USE = "placement.inventory.inuse"
PROVIDER_IN_USE = "placement.resource_provider.inuse"
PROVIDER_IS_PARENT = "placement.resource_provider.cannot_delete_parent"
PROVIDER_NOT_FOUND = "placement.resource_provider.not_found"
BAD_VALUE = "placement.query.bad_value"
DUPLICATE_KEY = "placement.query.duplicate_key"
MISSING_VALUE = "placement.query.missing_value"


def no_provider(uuid: str, purpose: str = "") -> NotFound:
    return NotFound(f"No resource provider with uuid {uuid[:255]} found{purpose}")


def generation_conflict(uuid: str) -> Conflict:
    return Conflict(
        f"Resource provider's generation already changed: resource provider generation conflict on {uuid}. "
        "Please update the generation and try again.",
        code=CONCURRENT_UPDATE,
    )


def no_class(name: str) -> BadRequest:
    return BadRequest(f"No such resource class {name}.")
