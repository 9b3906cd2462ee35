"""Identity objects in the database, and the routes that all kinds of them share."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar

import orjson

from kilonova import clock, store
from kilonova.http import Context, Response
from kilonova.http.errors import Conflict, NotFound
from kilonova.identity.api import Json, api, link
from kilonova.identity.listing import filters, list_page
from kilonova.identity.schemas import PAGING, QUERY_FLAG, QUERY_TEXT, body_of
from kilonova.identity.token_provider import CHANGES_CHANNEL, TokenProvider, revoke
from kilonova.store import Reader, Row, Transaction
from kilonova.store.conditions import Conditions
from kilonova.store.insert import insert_row


def new_id() -> str:
    """A UUID without dashes, as in Keystone."""
    return uuid.uuid4().hex


def not_found(noun: str, item_id: str) -> NotFound:
    return NotFound(f"Could not find {noun}: {item_id}.")


async def get(db: Reader, table: str, item_id: str) -> Row:
    """A row by its id, or 404."""
    return _found(await db.fetch_one(f"SELECT * FROM {table} WHERE id = $1", item_id), table, item_id)


async def lock(tx: Transaction, table: str, item_id: str) -> Row:
    """A row by its id, or 404; locked until the transaction ends."""
    return _found(await tx.fetch_one(f"SELECT * FROM {table} WHERE id = $1 FOR UPDATE", item_id), table, item_id)


def _found(row: Row | None, table: str, item_id: str) -> Row:
    if row is None:
        raise not_found(table.removesuffix("s"), item_id)
    return row


async def update(tx: Transaction, table: str, item_id: str, values: Json) -> None:
    columns = ", ".join(f"{column} = ${number}" for number, column in enumerate(values, 2))
    await tx.execute(f"UPDATE {table} SET {columns} WHERE id = $1", item_id, *values.values())


def token_validator(ctx: Context) -> TokenProvider:
    tokens = ctx.services.tokens
    assert isinstance(tokens, TokenProvider), "the identity API needs the built-in token validator"
    return tokens


@asynccontextmanager
async def write_transaction(ctx: Context) -> AsyncIterator[Transaction]:
    """A transaction after which every process drops its cached tokens."""
    async with ctx.db.transaction() as tx:
        yield tx
        tx.notify(CHANGES_CHANNEL)
    token_validator(ctx).forget()


@contextmanager
def conflicts(noun: str, name: str) -> Iterator[None]:
    """Turn conflicts of the database into HTTP 409."""
    try:
        yield
    except store.Conflict as error:
        duplicate = f"Duplicate entry found with name {name}"
        why = duplicate if error.kind == "unique" else "an object that it refers to was deleted"
        raise Conflict(f"Conflict occurred attempting to store {noun} - {why}.") from None


class Resource:
    """The routes that list, show, create, update and delete one kind of object.

    A subclass declares the attributes, and overrides the methods that its rules need.
    """

    noun: ClassVar[str]
    properties: ClassVar[Json]
    # Attributes that are not stored in the column `extra`.
    known: ClassVar[tuple[str, ...]]
    # Columns that a body sets, and the values of a new row where the body does not.
    columns: ClassVar[tuple[str, ...]] = ("name", "description", "enabled")
    defaults: ClassVar[Json] = {"description": "", "enabled": True}
    filters: ClassVar[tuple[str, ...]] = ("name",)
    flags: ClassVar[tuple[str, ...]] = ("enabled",)
    list_query: ClassVar[Json] = {}
    show_query: ClassVar[Json | None] = None

    def __init__(self) -> None:
        noun = self.noun
        table = self.table = f"{noun}s"
        many, one = f"/v3/{table}", f"/v3/{table}/{{{noun}_id}}"
        show_rule = f"identity:get_{noun}"
        show_check: Json = {"policy": show_rule} if self.target("") is None else {"checks": [show_rule]}
        query = dict.fromkeys(self.filters, QUERY_TEXT) | dict.fromkeys(self.flags, QUERY_FLAG)
        query |= self.list_query | PAGING
        create, change = body_of(noun, self.properties, "name"), body_of(noun, self.properties)
        add = self._add_route
        add("GET", many, self.index, f"List {table}.", policy=f"identity:list_{table}", query=query)
        add("GET", one, self.show, f"Show a {noun}.", query=self.show_query, **show_check)
        add("POST", many, self.create, f"Create a {noun}.", policy=f"identity:create_{noun}", body=create, status=201)
        add("PATCH", one, self.update, f"Change a {noun}.", policy=f"identity:update_{noun}", body=change)
        add("DELETE", one, self.delete, f"Delete a {noun}.", policy=f"identity:delete_{noun}", status=204)

    def _add_route(
        self, method: str, path: str, handler: Callable[..., Awaitable[Any]], summary: str, **options: Any
    ) -> None:
        async def route(ctx: Context, **params: str) -> Any:
            return await handler(ctx, *params.values())

        route.__doc__ = summary
        api.route(method, path, **options)(route)

    def target(self, item_id: str) -> Json | None:
        """The target of the rule that shows the object, if the rule depends on it."""
        return None

    def view(self, ctx: Context, row: Row) -> Json:
        return {
            **orjson.loads(row["extra"]),
            "id": row["id"],
            "name": row["name"],
            **self.attributes(row),
            "options": {},
            "links": {"self": link(ctx, f"{self.table}/{row['id']}")},
        }

    def attributes(self, row: Row) -> Json:
        raise NotImplementedError

    def where(self, ctx: Context) -> Conditions:
        return filters(ctx, self.filters, self.flags)

    async def index(self, ctx: Context) -> Response:
        return await list_page(ctx, self.table, self.where(ctx), self.view)

    async def show(self, ctx: Context, item_id: str) -> Response:
        if (target := self.target(item_id)) is not None:
            ctx.authorize(f"identity:get_{self.noun}", target)
        return Response({self.noun: self.view(ctx, await get(ctx.db, self.table, item_id))})

    async def create(self, ctx: Context) -> Response:
        body = ctx.body[self.noun]
        row = {
            "id": new_id(),
            **self.defaults,
            **await self.values(body),
            "extra": orjson.dumps(self._extra(body)).decode(),
        }
        with conflicts(self.noun, body["name"]):
            async with write_transaction(ctx) as tx:
                await self.insert(ctx, tx, row, body)
        return Response({self.noun: self.view(ctx, row)})

    async def values(self, body: Json) -> Json:
        """The columns that a body sets."""
        values = {name: body[name] for name in self.columns if name in body}
        if values.get("description", "") is None:
            values["description"] = self.defaults["description"]
        return values

    async def insert(self, ctx: Context, tx: Transaction, row: Json, body: Json) -> None:
        await insert_row(tx, self.table, row)

    async def update(self, ctx: Context, item_id: str) -> Response:
        body = ctx.body[self.noun]
        values = await self.values(body)
        with conflicts(self.noun, body.get("name", "")):
            async with write_transaction(ctx) as tx:
                row = await lock(tx, self.table, item_id)
                self.check_update(row, body)
                extra = {**orjson.loads(row["extra"]), **self._extra(body)}
                values["extra"] = orjson.dumps({key: extra[key] for key in extra if extra[key] is not None}).decode()
                await update(tx, self.table, item_id, values)
                is_disabled = "enabled" in row and row["enabled"] and not values.get("enabled", True)
                if is_disabled or "password_hash" in values:
                    await self.revoke_tokens(ctx, tx, item_id)
        return Response({self.noun: self.view(ctx, {**row, **values})})

    def check_update(self, row: Row, body: Json) -> None:
        pass

    async def revoke_tokens(self, ctx: Context, tx: Transaction, item_id: str) -> None:
        await revoke(tx, f"{self.noun} {item_id}", clock.now(), token_validator(ctx).token_seconds)

    def _extra(self, body: Json) -> Json:
        """The attributes that have no column."""
        own = {*self.known, "id", "links", "options"}
        return {key: value for key, value in body.items() if key not in own}

    async def delete(self, ctx: Context, item_id: str) -> None:
        async with write_transaction(ctx) as tx:
            await self.delete_dependents(tx, await lock(tx, self.table, item_id))
            await tx.execute(f"DELETE FROM {self.table} WHERE id = $1", item_id)

    async def delete_dependents(self, tx: Transaction, row: Row) -> None:
        pass
