"""Identity objects in the database, and the routes that all kinds of them share."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar

import orjson

from kilonova import clock, store
from kilonova.http import Context, Response
from kilonova.http.errors import Conflict, Forbidden, NotFound
from kilonova.identity.api import Json, api, link
from kilonova.identity.listing import filters, inexact, list_page
from kilonova.identity.schemas import PAGING, QUERY_FLAG, QUERY_TEXT, body_of
from kilonova.identity.token import Token
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


async def lock_all(tx: Transaction, table: str, column: str, value: str) -> None:
    """Lock the rows with this value, so that no other transaction refers to them before they are deleted."""
    await tx.fetch(f"SELECT id FROM {table} WHERE {column} = $1 ORDER BY id FOR UPDATE", value)


async def lock_deletions(tx: Transaction) -> None:
    """Wait for other deletions, before rows are locked. Two would lock dependent rows in different orders."""
    await tx.lock("identity.deletions")


async def update(tx: Transaction, table: str, item_id: str, values: Json) -> None:
    columns = ", ".join(f"{column} = ${number}" for number, column in enumerate(values, 2))
    await tx.execute(f"UPDATE {table} SET {columns} WHERE id = $1", item_id, *values.values())


def token_validator(ctx: Context) -> TokenProvider:
    tokens = ctx.services.tokens
    assert isinstance(tokens, TokenProvider), "the identity API needs the built-in token validator"
    return tokens


def refuse_delegated(ctx: Context, verb: str) -> None:
    """Refuse tokens that may have fewer roles than their user: what they would create could give all of them."""
    if isinstance(ctx.token, Token) and ctx.token.is_delegated:
        raise Forbidden(f"A token of a trust, an application credential or an EC2 credential cannot {verb}.")


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
    required: ClassVar[tuple[str, ...]] = ("name",)
    # Attributes that are not stored in the column `extra`.
    known: ClassVar[tuple[str, ...]]
    # Columns that a body sets, and the values of a new row where the body does not.
    columns: ClassVar[tuple[str, ...]] = ("name", "description", "enabled")
    defaults: ClassVar[Json] = {"description": "", "enabled": True}
    filters: ClassVar[tuple[str, ...]] = ("name",)
    flags: ClassVar[tuple[str, ...]] = ("enabled",)
    list_query: ClassVar[Json] = {}
    show_query: ClassVar[Json | None] = None
    # The column with the domain of an object. A token of a domain lists only the objects of this domain.
    domain_column: ClassVar[str] = ""
    # By verb, further rules that decide instead of the usual one about some objects.
    further_rules: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # The key of lists. By default also the path and the table; rows are read from `source`, by default the table.
    plural: str = ""
    path: str = ""
    table: str = ""
    source: str = ""
    # The routes that exist.
    verbs: ClassVar[tuple[str, ...]] = ("list", "get", "create", "update", "delete")
    # The columns by which lists are sorted.
    order: ClassVar[tuple[str, ...]] = ("name", "id")

    def __init__(self) -> None:
        noun, plural = self.noun, self.plural or f"{self.noun}s"
        self.plural, self.path, self.table = plural, self.path or plural, self.table or plural
        self.source = self.source or self.table
        many, one = f"/v3/{self.path}", f"/v3/{self.path}/{{{noun}_id}}"
        query = dict.fromkeys(self.filters, QUERY_TEXT) | dict.fromkeys(self.flags, QUERY_FLAG)
        query |= inexact(self.filters) | self.list_query | PAGING
        create, change = self.create_body(), body_of(noun, self.properties)
        add = self._add_route
        add("list", "GET", many, self.index, f"List {plural}.", query=query)
        add("get", "GET", one, self.show, f"Show a {noun}.", query=self.show_query)
        add("create", "POST", many, self.create, f"Create a {noun}.", body=create, status=201)
        add("update", "PATCH", one, self.update, f"Change a {noun}.", body=change)
        add("delete", "DELETE", one, self.delete, f"Delete a {noun}.", status=204)

    def create_body(self) -> Json:
        return body_of(self.noun, self.properties, *self.required)

    def _add_route(
        self, verb: str, method: str, path: str, handler: Callable[..., Awaitable[Any]], summary: str, **options: Any
    ) -> None:
        if verb not in self.verbs:
            return

        async def route(ctx: Context, **params: str) -> Any:
            return await handler(ctx, *params.values())

        route.__doc__ = summary
        rules = [self.rule(verb), *self.further_rules.get(verb, ())]
        checked = {"checks": rules} if self.target("") is not None else {"policy": rules[0]}
        api.route(method, path, **checked, **options)(route)

    @property
    def has_options(self) -> bool:
        return "options" in self.properties

    # Rules

    def rule(self, verb: str, row: Row | None = None) -> str:
        """The rule that decides about the object, or about all objects of the kind."""
        return f"identity:{verb}_{self.plural if verb == 'list' else self.noun}"

    def target(self, item_id: str, row: Row | None = None) -> Json | None:
        """The target of the rules, if they depend on the object. Without a row the object does not exist."""
        return None

    async def find(self, ctx: Context, db: Reader, item_id: str) -> Row | None:
        return await db.fetch_one(f"SELECT * FROM {self.source} WHERE id = $1", item_id)

    async def get(self, ctx: Context, db: Reader, item_id: str, rule: str | None = None, *, verb: str = "get") -> Row:
        """The row. 403 if the rule refuses, so that the caller does not learn whether the object exists; else 404."""
        row = await self.find(ctx, db, item_id)
        if (target := self.target(item_id, row)) is not None:
            ctx.authorize(rule or self.rule(verb, row), target)
        if row is None:
            raise not_found(self.noun, item_id)
        return row

    async def lock(self, ctx: Context, tx: Transaction, item_id: str) -> Row:
        """The row, or 404; locked until the transaction ends."""
        return await lock(tx, self.table, item_id)

    def authorize_list(self, ctx: Context) -> None:
        if self.target("") is not None:
            keys = ("target.domain_id", "target.domain.id", f"target.{self.noun}.domain_id")
            ctx.authorize(self.rule("list"), dict.fromkeys(keys, ctx.token.domain_id))

    # Routes

    def view(self, ctx: Context, row: Row) -> Json:
        extra = orjson.loads(row["extra"])
        options = {"options": extra.pop("options", {})} if self.has_options else {}
        return {
            **extra,
            "id": row["id"],
            **({"name": row["name"]} if "name" in row else {}),
            **self.attributes(row),
            **options,
            "links": {"self": link(ctx, f"{self.path}/{row['id']}")},
        }

    def attributes(self, row: Row) -> Json:
        raise NotImplementedError

    def where(self, ctx: Context) -> Conditions:
        """The conditions of a list. A token of a domain lists the objects of this domain only."""
        where = filters(ctx, self.filters, self.flags)
        if self.domain_column and ctx.token.domain_id is not None:
            where.add(f"{self.domain_column} = ?", ctx.token.domain_id)
        return where

    async def index(self, ctx: Context) -> Response:
        self.authorize_list(ctx)
        return await list_page(
            ctx, self.source, self.where(ctx), self.view, plural=self.plural, path=self.path, order=self.order
        )

    async def show(self, ctx: Context, item_id: str) -> Response:
        return Response({self.noun: self.view(ctx, await self.get(ctx, ctx.db, item_id))})

    async def create(self, ctx: Context) -> Response:
        (created,) = await self.create_all(ctx, [ctx.body[self.noun]])
        return Response({self.noun: created})

    async def create_all(self, ctx: Context, bodies: Sequence[Json]) -> list[Json]:
        """Create all objects or none; returns their views."""
        new = [(body, await self._new_row(ctx, body)) for body in bodies]
        async with write_transaction(ctx) as tx:
            for body, row in new:
                with conflicts(self.noun, self.name_of(row, body)):
                    await self.insert(ctx, tx, row, body)
        return [self.view(ctx, row) for _, row in new]

    async def _new_row(self, ctx: Context, body: Json) -> Json:
        placed = await self.place(ctx, body)
        if (target := self.target("", placed)) is not None:
            ctx.authorize(self.rule("create", placed), target)
        extra = {"extra": _dump(self._extra({}, body))}
        return {"id": new_id(), **self.defaults, **placed, **await self.values(ctx, body), **extra}

    async def place(self, ctx: Context, body: Json) -> Json:
        """The columns that say where a new object belongs. They are checked when it is inserted."""
        return {}

    async def values(self, ctx: Context, body: Json) -> Json:
        """The columns that a body sets."""
        given = {name: body[name] for name in self.columns if name in body}
        return {name: self.defaults.get(name) if value is None else value for name, value in given.items()}

    def name_of(self, row: Json, body: Json) -> str:
        """The name of a new object in error messages."""
        return str(body.get("name", row["id"]))

    async def insert(self, ctx: Context, tx: Transaction, row: Json, body: Json) -> None:
        await insert_row(tx, self.table, row)

    async def update(self, ctx: Context, item_id: str) -> Response:
        body = ctx.body[self.noun]
        await self.get(ctx, ctx.db, item_id, verb="update")
        values = await self.values(ctx, body)
        with conflicts(self.noun, body.get("name", "")):
            async with write_transaction(ctx) as tx:
                row = await self.lock(ctx, tx, item_id)
                if self.has_options:
                    check_mutable(self.noun, row, body)
                await self.check_update(ctx, tx, row, body)
                values["extra"] = _dump(_without_null(self._extra(orjson.loads(row["extra"]), body)))
                await update(tx, self.table, item_id, values)
                is_disabled = "enabled" in row and row["enabled"] and not values.get("enabled", True)
                if is_disabled or "password_hash" in values:
                    await self.revoke_tokens(ctx, tx, item_id)
        return Response({self.noun: self.view(ctx, {**row, **values})})

    async def check_update(self, ctx: Context, tx: Transaction, row: Row, body: Json) -> None:
        pass

    async def revoke_tokens(self, ctx: Context, tx: Transaction, item_id: str) -> None:
        await revoke(tx, f"{self.noun} {item_id}", clock.now(), token_validator(ctx).token_seconds)

    def _extra(self, stored: Json, body: Json) -> Json:
        """The attributes that have no column, after a change. The options are one of them; null removes an option."""
        own = {*self.known, "id", "links", *(["options"] if self.has_options else [])}
        extra = {**stored, **{key: value for key, value in body.items() if key not in own}}
        if not self.has_options:
            return extra
        options = _without_null({**stored.get("options", {}), **body.get("options", {})})
        return {**extra, "options": options} if options or "options" in stored else extra

    async def delete(self, ctx: Context, item_id: str) -> None:
        async with write_transaction(ctx) as tx:
            await self.get(ctx, tx, item_id, verb="delete")
            await lock_deletions(tx)
            row = await self.lock(ctx, tx, item_id)
            if self.has_options:
                check_mutable(self.noun, row)
            await self.delete_dependents(ctx, tx, row)
            await tx.execute(f"DELETE FROM {self.table} WHERE id = $1", item_id)

    async def delete_dependents(self, ctx: Context, tx: Transaction, row: Row) -> None:
        pass


def check_mutable(noun: str, row: Row, body: Json | None = None) -> None:
    """Refuse to change or delete an object with the option `immutable`, except to remove the option."""
    is_immutable = orjson.loads(row["extra"]).get("options", {}).get("immutable")
    if is_immutable and (body is None or body.keys() != {"options"} or body["options"].get("immutable", True)):
        raise Forbidden(f"The {noun} {row['id']} is immutable: set its option immutable to false first.")


def _without_null(values: Json) -> Json:
    return {key: value for key, value in values.items() if value is not None}


def _dump(extra: Json) -> str:
    return orjson.dumps(extra).decode()
