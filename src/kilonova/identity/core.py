"""What the identity routes share: the API object, its error format, links, lists, and the transaction they write in."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlencode

import orjson

from kilonova import store
from kilonova.http import Answer, Api, Context
from kilonova.http.errors import BadRequest, Conflict, HttpError, NotFound
from kilonova.identity.tokens import CHANNEL, Validator
from kilonova.store import Reader, Row, Transaction

Json = dict[str, Any]


def fault(error: HttpError, request_id: str) -> Json:
    return {"error": {"code": error.status, "message": error.message, "title": error.title}}


api = Api("identity", prefix="/identity", errors=fault)

# Schemas

NAME: Json = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"\S"}
SHORT_NAME: Json = {**NAME, "maxLength": 64}
IDENT: Json = {"type": "string", "minLength": 1, "maxLength": 64}
TEXT: Json = {"type": "string", "maxLength": 65535}
OPTIONAL_TEXT: Json = {**TEXT, "type": ["string", "null"]}
FLAG: Json = {"type": "boolean"}
TAGS: Json = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[^,/]+$"},
    "maxItems": 80,
    "uniqueItems": True,
}
OPTIONS: Json = {"type": "object", "maxProperties": 0}
ANY_TEXT: Json = {"type": "string"}
QUERY_FLAG: Json = {"enum": ["", "0", "1", "true", "True", "false", "False"]}
PAGES: Json = {"limit": {"type": "string", "pattern": r"^[1-9]\d{0,8}$"}, "marker": ANY_TEXT}


def body_of(noun: str, properties: Json, *required: str) -> Json:
    """`{noun: {…}}`. As in the public API, attributes that are not declared are kept and shown."""
    return {
        "type": "object",
        "properties": {
            noun: {"type": "object", "properties": properties, "required": list(required), "maxProperties": 64}
        },
        "required": [noun],
        "additionalProperties": False,
    }


def extra_of(body: Json, known: Iterable[str]) -> str:
    """The attributes that are not the service's own, as a document."""
    own = {*known, "id", "links", "options"}
    return orjson.dumps({key: value for key, value in body.items() if key not in own}).decode()


def merged_extra(row: Row, body: Json, known: Iterable[str]) -> str:
    """After an update: new attributes are added, those set to null go."""
    extra = {**orjson.loads(row["extra"]), **orjson.loads(extra_of(body, known))}
    return orjson.dumps({key: value for key, value in extra.items() if value is not None}).decode()


# Links


def root(ctx: Context) -> str:
    """The service's base as clients reach it, without the version."""
    public = ctx.services.config.public_url
    return public.rstrip("/") + api.prefix if public else ctx.base_url()


def link(ctx: Context, path: str) -> str:
    return f"{root(ctx)}/v3/{path}"


# Reading


def new_ident() -> str:
    """Identity's ids are UUIDs without dashes, as clients know them."""
    return uuid.uuid4().hex


def missing(noun: str, ident: str) -> NotFound:
    return NotFound(f"Could not find {noun}: {ident}.")


async def row_of(db: Reader, table: str, ident: str) -> Row:
    """A row by its id, or 404."""
    return _found(await db.fetch_one(f"SELECT * FROM {table} WHERE id = $1", ident), table, ident)


async def row_to_change(tx: Transaction, table: str, ident: str) -> Row:
    """A row by its id, or 404; nobody else changes it until the transaction ends."""
    return _found(await tx.fetch_one(f"SELECT * FROM {table} WHERE id = $1 FOR UPDATE", ident), table, ident)


def _found(row: Row | None, table: str, ident: str) -> Row:
    if row is None:
        raise missing(table.removesuffix("s"), ident)
    return row


class Where:
    """Conditions of a list, collected from the query: `{0}`, `{1}` in a condition stand for the values."""

    def __init__(self) -> None:
        self.conditions: list[str] = []
        self.values: list[Any] = []

    def add(self, condition: str, *values: Any) -> None:
        first = len(self.values) + 1
        self.values += values
        self.conditions.append(condition.format(*(f"${first + place}" for place in range(len(values)))))

    def __str__(self) -> str:
        return f" WHERE {' AND '.join(self.conditions)}" if self.conditions else ""


def flag(ctx: Context, key: str) -> bool:
    """A key without a value means yes."""
    return ctx.query_one(key, "0") not in ("0", "false", "False")


def filters(ctx: Context, texts: Sequence[str], flags: Sequence[str] = ()) -> Where:
    """Equality on columns named like the query's keys."""
    where = Where()
    for key in texts:
        if (value := ctx.query_one(key)) is not None:
            where.add(f"{key} = {{0}}", value)
    for key in flags:
        if key in ctx.query:
            where.add(f"{key} = {{0}}", flag(ctx, key))
    return where


async def page(
    ctx: Context,
    collection: str,
    where: Where,
    view: Callable[[Context, Row], Json],
    keep: Callable[[Row], bool] | None = None,
) -> Answer:
    """A list of a table's rows by name: all of them unless the caller asks for pages."""
    marker = ctx.query_one("marker")
    if marker is not None:
        start = await ctx.db.fetch_one(f"SELECT name, id FROM {collection} WHERE id = $1", marker)
        if start is None:
            raise BadRequest(f"The marker {marker[:80]} is not the id of an entry of this list.")
        where.add("(name > {0} OR name = {0} AND id > {1})", start["name"], start["id"])
    sql = f"SELECT * FROM {collection}{where} ORDER BY name, id"
    limit = ctx.query_one("limit")
    rows = await ctx.db.fetch(f"{sql} LIMIT {int(limit) + 1}" if limit else sql, *where.values)
    more = limit is not None and len(rows) > int(limit)
    if limit is not None:
        rows = rows[: int(limit)]
    shown = [view(ctx, row) for row in rows if keep is None or keep(row)]
    following = None
    if more:
        following = link(ctx, f"{collection}?{urlencode({**_kept_query(ctx), 'marker': rows[-1]['id']})}")
    return Answer({collection: shown, "links": links(ctx, collection, following)})


def _kept_query(ctx: Context) -> dict[str, str]:
    return {key: values[-1] for key, values in ctx.query.items() if key != "marker"}


def links(ctx: Context, path: str, following: str | None = None) -> Json:
    return {"self": link(ctx, path), "previous": None, "next": following}


# Writing


def validator(ctx: Context) -> Validator:
    tokens = ctx.services.tokens
    assert isinstance(tokens, Validator), "the identity API is served only where tokens are the built-in ones"
    return tokens


@asynccontextmanager
async def change(ctx: Context) -> AsyncIterator[Transaction]:
    """A transaction after which no process goes on trusting what it knew of tokens."""
    async with ctx.db.transaction() as tx:
        yield tx
        tx.wake(CHANNEL)
    validator(ctx).forget()


@contextmanager
def storing(noun: str, name: str) -> Iterator[None]:
    """Say in the API's words what the database refuses."""
    try:
        yield
    except store.Conflict as error:
        why = f"Duplicate entry found with name {name}" if error.kind == "unique" else "what it refers to has gone"
        raise Conflict(f"Conflict occurred attempting to store {noun} - {why}.") from None


async def update_row(tx: Transaction, table: str, ident: str, values: Json) -> None:
    if values:
        columns = ", ".join(f"{column} = ${place}" for place, column in enumerate(values, 2))
        await tx.execute(f"UPDATE {table} SET {columns} WHERE id = $1", ident, *values.values())


async def insert_row(tx: Transaction, table: str, values: Json) -> None:
    places = ", ".join(f"${place}" for place in range(1, len(values) + 1))
    await tx.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", *values.values())
