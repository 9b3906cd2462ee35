"""Allocations of consumers on providers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, NotRequired, TypedDict

import msgspec

from kilonova.http import Context, Field, Response, View, attribute
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.schema import Schema
from kilonova.http.views import OMIT
from kilonova.ids import is_uuid
from kilonova.placement import allocation_update
from kilonova.placement.allocation_update import ConsumerAllocations, Owner
from kilonova.placement.api import api, with_last_modified
from kilonova.placement.model import StoredConsumer
from kilonova.placement.rest.lookup import PROVIDER_PATH, find_provider, normalize_uuid
from kilonova.placement.rest.schemas import UUID, keyed_object, strict_object
from kilonova.store import Row, Transaction

POLICY = "placement:allocations:"
ALL_PATH, ONE_PATH = "/allocations", "/allocations/{consumer_uuid}"
UNKNOWN = "unknown"

KEY = "^[0-9a-fA-F-]{36}$"
IDENT: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
RESOURCES = keyed_object("^[A-Z0-9_]+$", {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}, at_least=1)
ALLOCATIONS = keyed_object(
    KEY, strict_object({"resources": RESOURCES, "generation": {"type": "integer"}}, ["resources"])
)
NONEMPTY_ALLOCATIONS = {**ALLOCATIONS, "minProperties": 1}
CONSUMER = strict_object(
    {
        "allocations": ALLOCATIONS,
        "project_id": IDENT,
        "user_id": IDENT,
        "consumer_generation": {"type": ["integer", "null"]},
        "consumer_type": {"type": "string", "pattern": "^[A-Z0-9_]+$", "minLength": 1, "maxLength": 255},
        "mappings": {
            "type": "object",
            "minProperties": 1,
            "patternProperties": {"^[a-zA-Z0-9_-]{0,64}$": {"type": "array", "items": UUID, "minItems": 1}},
        },
    },
    ["allocations", "project_id", "user_id", "consumer_generation", "consumer_type"],
)
CONSUMERS = keyed_object(KEY, CONSUMER, at_least=1)
# Up to 1.11.
ALLOCATION_LIST: Schema = {
    "type": "array",
    "minItems": 1,
    "items": strict_object({"resource_provider": strict_object({"uuid": UUID}), "resources": RESOURCES}),
}


class _Resources(TypedDict):
    resources: dict[str, int]


class _ListEntry(_Resources):
    resource_provider: dict[str, str]


class _OldBody(TypedDict):
    allocations: list[_ListEntry]


class ConsumerBody(TypedDict):
    """A body by the schema CONSUMER. Old versions do not have all keys."""

    allocations: dict[str, _Resources]
    project_id: NotRequired[str]
    user_id: NotRequired[str]
    consumer_generation: NotRequired[int | None]
    consumer_type: NotRequired[str]


class _Held(NamedTuple):
    """Resources with the generation of their provider, or of their consumer."""

    generation: int
    resources: dict[str, int]


class _Shown(NamedTuple):
    allocations: dict[str, dict[str, object]]
    consumer: StoredConsumer | None


def allocations_from_list(body: _OldBody) -> dict[str, object]:
    """Upgrades the list of versions before 1.12 to an object keyed by provider."""
    allocations: dict[str, _Resources] = {}
    for entry in body["allocations"]:
        held = allocations.setdefault(entry["resource_provider"]["uuid"], {"resources": {}})["resources"]
        held.update(entry["resources"])
    return {**body, "allocations": allocations}


def _of_consumer(value: Callable[[StoredConsumer], object], kind: str) -> Field:
    """A field that is absent if there is no such consumer."""

    def show(shown: _Shown, ctx: Context) -> object:
        return OMIT if shown.consumer is None else value(shown.consumer)

    return Field(show, {"type": kind}, optional=True)


api.view(
    View(
        "allocations",
        {
            "allocations": attribute("allocations", {"type": "object"}),
            "project_id": _of_consumer(lambda consumer: consumer.project_id, "string"),
            "user_id": _of_consumer(lambda consumer: consumer.user_id, "string"),
            "consumer_generation": _of_consumer(lambda consumer: consumer.generation, "integer"),
            "consumer_type": _of_consumer(lambda consumer: consumer.type or UNKNOWN, "string"),
        },
    )
)
api.view(
    View(
        "allocation of a provider",
        {
            "resources": attribute("resources", {"type": "object"}),
            "consumer_generation": attribute("generation", {"type": "integer"}),
        },
    )
)


@api.route("GET", ONE_PATH, policy=POLICY + "list", query={"*": {}}, shows=("", "allocations", False))
async def show(ctx: Context, consumer_uuid: str) -> Response:
    """Show the allocations of a consumer. An unknown consumer has none."""
    uuid = normalize_uuid(consumer_uuid)
    row = await ctx.db.fetch_one("SELECT * FROM consumers WHERE uuid = $1", uuid)
    consumer = StoredConsumer.decode_optional(row)
    held = _group(await ctx.db.fetch(_HELD, uuid)) if consumer else {}
    allocations: dict[str, dict[str, object]] = {provider: one._asdict() for provider, one in held.items()}
    shown = ctx.render("allocations", _Shown(allocations, consumer if held else None))
    return with_last_modified(ctx, shown, consumer.updated_at if consumer else None)


@api.route("PUT", ONE_PATH, policy=POLICY + "update", body=CONSUMER, query={"*": {}}, status=204)
async def put(ctx: Context, consumer_uuid: str) -> None:
    """Replace the allocations of a consumer."""
    if not is_uuid(consumer_uuid):
        raise BadRequest(f"Malformed consumer_uuid: {consumer_uuid[:255]}")
    await _replace(ctx, {consumer_uuid: ctx.body})


@api.route("DELETE", ONE_PATH, policy=POLICY + "delete", query={"*": {}}, status=204)
async def delete(ctx: Context, consumer_uuid: str) -> None:
    """Delete the allocations of a consumer."""

    async def write(tx: Transaction) -> None:
        if not await allocation_update.remove(tx, normalize_uuid(consumer_uuid)):
            raise NotFound(f"No allocations for consumer '{consumer_uuid[:255]}'")

    await allocation_update.run_with_retries(ctx.db, write)


@api.route("POST", ALL_PATH, policy=POLICY + "manage", body=CONSUMERS, query={"*": {}}, status=204)
async def post(ctx: Context) -> None:
    """Replace the allocations of several consumers atomically."""
    await _replace(ctx, ctx.body)


@api.route(
    "GET", f"{PROVIDER_PATH}/allocations", policy="placement:resource_providers:allocations:list", query={"*": {}}
)
async def of_provider(ctx: Context, uuid: str) -> Response:
    """List the allocations on a provider."""
    provider = await find_provider(ctx.db, uuid)
    consumers = _group(await ctx.db.fetch(_OF_PROVIDER, provider.id))
    shown = {
        "allocations": {uuid: ctx.render("allocation of a provider", held) for uuid, held in consumers.items()},
        "resource_provider_generation": provider.generation,
    }
    return with_last_modified(ctx, shown, provider.updated_at)


def _group(rows: list[Row]) -> dict[str, _Held]:
    """Group allocations by `uuid`, which is that of their provider or of their consumer."""
    found: dict[str, _Held] = {}
    for row in rows:
        held = found.setdefault(row["uuid"], _Held(row["generation"], {}))
        held.resources[row["resource_class"]] = row["used"]
    return found


def parse_consumers(given: Mapping[str, ConsumerBody]) -> list[ConsumerAllocations]:
    """The bodies as new allocations, sorted by consumer."""
    found = {
        normalize_uuid(uuid): ConsumerAllocations(
            uuid=normalize_uuid(uuid),
            allocations={normalize_uuid(provider): held["resources"] for provider, held in body["allocations"].items()},
            project_id=body.get("project_id", msgspec.UNSET),
            user_id=body.get("user_id", msgspec.UNSET),
            type=body.get("consumer_type", msgspec.UNSET),
            generation=body.get("consumer_generation", msgspec.UNSET),
        )
        for uuid, body in given.items()
    }
    return [found[uuid] for uuid in sorted(found)]


def incomplete_owner(ctx: Context) -> Owner:
    """Project and user of consumers that requests of old versions create without them."""
    settings = ctx.services.config.placement
    return Owner(settings.incomplete_project_id, settings.incomplete_user_id)


async def _replace(ctx: Context, given: Mapping[str, ConsumerBody]) -> None:
    wanted = parse_consumers(given)

    async def write(tx: Transaction) -> None:
        await allocation_update.replace(tx, wanted, await allocation_update.lock(tx, wanted), incomplete_owner(ctx))

    await allocation_update.run_with_retries(ctx.db, write)


_HELD = """
SELECT p.uuid, p.generation, a.resource_class, a.used
FROM allocations a JOIN resource_providers p ON p.id = a.provider_id
WHERE a.consumer_uuid = $1 ORDER BY p.id, a.resource_class
"""
_OF_PROVIDER = """
SELECT a.consumer_uuid AS uuid, c.generation, a.resource_class, a.used
FROM allocations a JOIN consumers c ON c.uuid = a.consumer_uuid
WHERE a.provider_id = $1 ORDER BY a.consumer_uuid, a.resource_class
"""
