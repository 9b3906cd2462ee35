"""Trusts: a user, the trustor, lets another, the trustee, act in a project with some of the trustor's roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import orjson

from kilonova import clock
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Forbidden
from kilonova.identity.api import Json, api, list_links
from kilonova.identity.assigned_roles import RoleNotHeld, effective_roles, find_references
from kilonova.identity.expiry import EXPIRES_AT, parse_expiry
from kilonova.identity.resources import Resource, get, not_found, refuse_delegated
from kilonova.identity.rights import with_implied
from kilonova.identity.roles import ROLES
from kilonova.identity.schemas import BOOLEAN, COUNT_OR_NULL, ID, ID_OR_NULL, QUERY_TEXT, ROLE_REFERENCES
from kilonova.identity.token import Scope, Token
from kilonova.store import Reader, Row, Transaction
from kilonova.store.conditions import Conditions

# As in Keystone's default settings.
MAX_REDELEGATION_COUNT = 3
# A trust that is used up is kept for its last tokens.
_IS_VALID = "(remaining_uses IS NULL OR remaining_uses > 0) AND (expires_at IS NULL OR expires_at > {})"


class Trusts(Resource):
    noun = "trust"
    path = "OS-TRUST/trusts"
    verbs = ("list", "get", "create", "delete")
    properties: ClassVar[Json] = {
        "trustor_user_id": ID,
        "trustee_user_id": ID,
        "project_id": ID_OR_NULL,
        "impersonation": BOOLEAN,
        "expires_at": EXPIRES_AT,
        "remaining_uses": {**COUNT_OR_NULL, "minimum": 1},
        "allow_redelegation": BOOLEAN,
        "redelegation_count": COUNT_OR_NULL,
        "roles": ROLE_REFERENCES,
    }
    required = ("trustor_user_id", "trustee_user_id", "impersonation")
    known = (*properties, "redelegated_trust_id", "deleted_at", "roles_links")
    columns = ("trustor_user_id", "trustee_user_id", "project_id", "impersonation", "remaining_uses")
    defaults: ClassVar[Json] = {"project_id": None, "remaining_uses": None}
    filters = ()
    flags = ()
    list_query: ClassVar[Json] = dict.fromkeys(("trustor_user_id", "trustee_user_id"), QUERY_TEXT)
    further_rules: ClassVar[dict[str, tuple[str, ...]]] = {
        "list": ("identity:list_trusts_for_trustor", "identity:list_trusts_for_trustee")
    }
    order: ClassVar[tuple[str, ...]] = ("id",)

    # Rules

    def target(self, item_id: str, row: Row | None = None) -> Json:
        if row is None:
            return {}
        return {f"target.trust.{key}": row[key] for key in ("trustor_user_id", "trustee_user_id")}

    async def find(self, ctx: Context, db: Reader, item_id: str) -> Row | None:
        return await db.fetch_one(f"SELECT * FROM trusts WHERE id = $1 AND {_IS_VALID.format('$2')}", item_id, ctx.now)

    async def get(self, ctx: Context, db: Reader, item_id: str, rule: str | None = None, *, verb: str = "get") -> Row:
        """The trust. 404 also for a trust of others: clients delete trusts that may be deleted already.

        A token of a trust may delete a trust: Heat deletes stacks with such a token. Other delegated tokens may not.
        """
        row = await self.find(ctx, db, item_id)
        if row is None:
            raise not_found(self.noun, item_id)
        try:
            ctx.authorize(rule or self.rule(verb), self.target(item_id, row))
        except Forbidden:
            if ctx.token.user_id == row["trustee_user_id"]:
                raise
            raise not_found(self.noun, item_id) from None
        if verb == "delete" and not (isinstance(ctx.token, Token) and ctx.token.trust is not None):
            refuse_delegated(ctx, "delete trusts")
        return row

    def authorize_list(self, ctx: Context) -> None:
        """Trustor and trustee may list the trusts that they have together."""
        rules: list[tuple[str, Json]] = [
            (f"identity:list_trusts_for_{who}", {f"target.trust.{who}_user_id": ctx.query_one(f"{who}_user_id")})
            for who in ("trustor", "trustee")
            if f"{who}_user_id" in ctx.query
        ]
        if not any(ctx.may(*rule) for rule in rules[1:]):
            ctx.authorize(*(rules[0] if rules else (self.rule("list"), {})))

    def where(self, ctx: Context) -> Conditions:
        where = Conditions()
        where.add(_IS_VALID.format("?"), ctx.now)
        for key in self.list_query:
            if (value := ctx.query_one(key)) is not None:
                where.add(f"{key} = ?", value)
        return where

    # Views

    def attributes(self, row: Row) -> Json:
        return {
            **{key: row[key] for key in self.columns},
            "expires_at": clock.iso_micro(row["expires_at"]) + "Z" if row["expires_at"] is not None else None,
            "deleted_at": None,
            "redelegation_count": row["redelegation_count"],
            "redelegated_trust_id": row["redelegated_trust_id"],
            "roles": [{"id": role_id} for role_id in orjson.loads(row["role_ids"])],
        }

    async def show(self, ctx: Context, item_id: str) -> Response:
        shown = self.view(ctx, await self.get(ctx, ctx.db, item_id))
        return Response({"trust": await self._with_roles(ctx, shown)})

    async def _with_roles(self, ctx: Context, shown: Json) -> Json:
        roles = await role_views(ctx, [role["id"] for role in shown["roles"]])
        return {**shown, "roles": roles, "roles_links": list_links(ctx, f"{self.path}/{shown['id']}/roles")}

    # Creation

    async def create(self, ctx: Context) -> Response:
        (created,) = await self.create_all(ctx, [ctx.body["trust"]])
        return Response({"trust": await self._with_roles(ctx, created)})

    async def place(self, ctx: Context, body: Json) -> Json:
        return {key: body[key] for key in ("trustor_user_id", "trustee_user_id")}

    async def values(self, ctx: Context, body: Json) -> Json:
        parent = await self._parent(ctx, body)
        expires_at = parse_expiry(body.get("expires_at"))
        if parent is not None and parent["expires_at"] is not None:
            if expires_at is not None and expires_at > parent["expires_at"]:
                raise Forbidden("expires_at: the trust cannot be longer than the trust that it passes on.")
            expires_at = expires_at or parent["expires_at"]
        return {
            **await super().values(ctx, body),
            "expires_at": expires_at,
            "redelegation_count": _redelegation_count(body, parent),
            "redelegated_trust_id": parent["id"] if parent is not None else None,
            "role_ids": orjson.dumps(await self._role_ids(ctx, body, parent)).decode(),
        }

    async def _parent(self, ctx: Context, body: Json) -> Row | None:
        """The trust that a token of a trust passes on."""
        trust = ctx.token.trust if isinstance(ctx.token, Token) else None
        if trust is None:
            refuse_delegated(ctx, "create trusts")
            return None
        parent = await self.find(ctx, ctx.db, trust.id)
        if parent is None or not parent["redelegation_count"] or not parent["impersonation"]:
            raise Forbidden(f"The trust {trust.id} cannot be passed on.")
        if body.get("remaining_uses") is not None:
            raise Forbidden("remaining_uses: a trust that passes on another cannot have a limited number of uses.")
        if body.get("project_id") != parent["project_id"]:
            raise Forbidden("project_id: a trust that passes on another is for the same project.")
        return parent

    async def _role_ids(self, ctx: Context, body: Json, parent: Row | None) -> list[str]:
        """The roles of the body. The trustor must have them, and the trust that is passed on too."""
        wanted, project_id = body.get("roles", []), body.get("project_id")
        if project_id is None:
            if wanted:
                raise BadRequest("roles: a trust with roles needs a project_id.")
            return []
        if not wanted:
            raise Forbidden("roles: a trust for a project needs at least one role.")
        held = await effective_roles(ctx.db, body["trustor_user_id"], Scope("project", project_id))
        try:
            found = find_references(wanted, held)
        except RoleNotHeld as error:
            raise not_found("role", str(error)) from None
        if parent is not None and not set(found) <= await with_implied(ctx.db, orjson.loads(parent["role_ids"])):
            raise Forbidden("roles: a trust that passes on another cannot have more roles.")
        return found

    async def insert(self, ctx: Context, tx: Transaction, row: Json, body: Json) -> None:
        await get(tx, "users", row["trustee_user_id"])
        await super().insert(ctx, tx, row, body)


TRUSTS = Trusts()


def _redelegation_count(body: Json, parent: Row | None) -> int:
    """How many times the trust may be passed on."""
    if not body.get("allow_redelegation"):
        return 0
    if body.get("remaining_uses") is not None:
        raise BadRequest("remaining_uses must not be set if redelegation is allowed.")
    limit: int = parent["redelegation_count"] - 1 if parent is not None else MAX_REDELEGATION_COUNT
    count = body.get("redelegation_count")
    if count is not None and count > limit:
        raise Forbidden(f"redelegation_count: at most {limit} is allowed here, not {count}.")
    return limit if count is None else int(count)


async def role_views(ctx: Context, role_ids: Sequence[str]) -> list[Json]:
    rows = await ctx.db.fetch("SELECT * FROM roles WHERE id = ANY($1) ORDER BY name", list(role_ids))
    return [ROLES.view(ctx, row) for row in rows]


_ONE = "/v3/OS-TRUST/trusts/{trust_id}"
_ROLE = f"{_ONE}/roles/{{role_id}}"


@api.route("HEAD", _ONE, checks=["identity:get_trust"])
async def check(ctx: Context, trust_id: str) -> None:
    """Check whether a trust exists."""
    await TRUSTS.get(ctx, ctx.db, trust_id)


@api.route("GET", f"{_ONE}/roles", checks=["identity:list_roles_for_trust"])
async def list_roles(ctx: Context, trust_id: str) -> Response:
    """List the roles of a trust."""
    row = await TRUSTS.get(ctx, ctx.db, trust_id, "identity:list_roles_for_trust")
    shown = await role_views(ctx, orjson.loads(row["role_ids"]))
    return Response({"roles": shown, "links": list_links(ctx, f"{TRUSTS.path}/{trust_id}/roles")})


async def _role(ctx: Context, trust_id: str, role_id: str) -> Json:
    row = await TRUSTS.get(ctx, ctx.db, trust_id, "identity:get_role_for_trust")
    shown = await role_views(ctx, [role_id]) if role_id in orjson.loads(row["role_ids"]) else []
    if not shown:
        raise not_found("role", role_id)
    return shown[0]


@api.route("GET", _ROLE, checks=["identity:get_role_for_trust"])
async def show_role(ctx: Context, trust_id: str, role_id: str) -> Response:
    """Show a role of a trust."""
    return Response({"role": await _role(ctx, trust_id, role_id)})


@api.route("HEAD", _ROLE, checks=["identity:get_role_for_trust"])
async def check_role(ctx: Context, trust_id: str, role_id: str) -> None:
    """Check whether a trust has a role."""
    await _role(ctx, trust_id, role_id)
