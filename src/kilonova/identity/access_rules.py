"""Access rules of users: the requests that tokens of an application credential may send.

A rule is stored once for each user. The application credentials of the user share it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kilonova.http import Context, Response
from kilonova.http.errors import Forbidden
from kilonova.identity.api import Json, api, link
from kilonova.identity.listing import filters, list_page
from kilonova.identity.resources import lock, lock_deletions, new_id, not_found, refuse_delegated, write_transaction
from kilonova.identity.schemas import ID, NAME, PAGING, QUERY_TEXT
from kilonova.identity.users import USERS
from kilonova.policy.credentials import AccessRule
from kilonova.store import Reader, Row, Transaction
from kilonova.store.insert import insert_row

_ATTRIBUTES = ("service", "method", "path")
_MAX_PATH_LENGTH = 255
# Of an application credential: null allows all requests, an empty list none.
ACCESS_RULES: Json = {
    "type": ["array", "null"],
    "maxItems": 64,
    "items": {
        "type": "object",
        "properties": {
            "id": ID,
            "service": NAME,
            "method": {"enum": ["DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"]},
            "path": {"type": "string", "pattern": "^/", "maxLength": _MAX_PATH_LENGTH},
        },
        "anyOf": [{"required": ["id"]}, {"required": [*_ATTRIBUTES]}],
        "additionalProperties": False,
    },
}
_MANY = "/v3/users/{user_id}/access_rules"
_ONE = f"{_MANY}/{{access_rule_id}}"


async def add_access_rules(
    tx: Transaction, user_id: str, application_credential_id: str, given: Sequence[Json]
) -> tuple[AccessRule, ...]:
    """Give the application credential these rules: new ones, or present ones of the user."""
    found: dict[str, AccessRule] = {}
    for rule in given:
        row = await (_present(tx, user_id, rule["id"]) if "id" in rule else _create(tx, user_id, rule))
        found[row["id"]] = AccessRule(row["id"], *(row[key] for key in _ATTRIBUTES))
    for rule_id in found:
        values = {"application_credential_id": application_credential_id, "access_rule_id": rule_id}
        await insert_row(tx, "application_credential_rules", values)
    return tuple(found.values())


async def _create(tx: Transaction, user_id: str, rule: Json) -> Row:
    values = [rule[key] for key in _ATTRIBUTES]
    await tx.execute(
        "INSERT INTO access_rules (id, user_id, service, method, path) VALUES ($1, $2, $3, $4, $5) "
        "ON CONFLICT DO NOTHING",
        new_id(),
        user_id,
        *values,
    )
    row = await tx.fetch_one(
        "SELECT * FROM access_rules WHERE user_id = $1 AND service = $2 AND method = $3 AND path = $4 FOR UPDATE",
        user_id,
        *values,
    )
    assert row is not None
    return row


async def _present(db: Reader, user_id: str, rule_id: str) -> Row:
    row = await db.fetch_one("SELECT * FROM access_rules WHERE id = $1 AND user_id = $2", rule_id, user_id)
    if row is None:
        raise not_found("access rule", rule_id)
    return row


def _view(ctx: Context, row: Row) -> Json:
    shown = {key: row[key] for key in ("id", *_ATTRIBUTES)}
    return {**shown, "links": {"self": link(ctx, f"users/{row['user_id']}/access_rules/{row['id']}")}}


@api.route(
    "GET", _MANY, checks=["identity:list_access_rules"], query={**dict.fromkeys(_ATTRIBUTES, QUERY_TEXT), **PAGING}
)
async def index(ctx: Context, user_id: str) -> Response:
    """List the access rules of a user."""
    await USERS.get(ctx, ctx.db, user_id, "identity:list_access_rules")
    where = filters(ctx, _ATTRIBUTES)
    where.add("user_id = ?", user_id)
    path = f"users/{user_id}/access_rules"
    return await list_page(ctx, "access_rules", where, _view, path=path, order=(*_ATTRIBUTES, "id"))


@api.route("GET", _ONE, checks=["identity:get_access_rule"])
async def show(ctx: Context, user_id: str, access_rule_id: str) -> Response:
    """Show an access rule."""
    ctx.authorize("identity:get_access_rule", USERS.target(user_id))
    return Response({"access_rule": _view(ctx, await _present(ctx.db, user_id, access_rule_id))})


@api.route("DELETE", _ONE, checks=["identity:delete_access_rule"], status=204)
async def delete(ctx: Context, user_id: str, access_rule_id: str) -> None:
    """Delete an access rule that no application credential uses."""
    ctx.authorize("identity:delete_access_rule", USERS.target(user_id))
    refuse_delegated(ctx, "delete access rules")
    async with write_transaction(ctx) as tx:
        await lock_deletions(tx)
        await _present(tx, user_id, access_rule_id)
        await lock(tx, "access_rules", access_rule_id)
        if await tx.fetch_value(
            "SELECT 1 FROM application_credential_rules WHERE access_rule_id = $1 LIMIT 1", access_rule_id
        ):
            raise Forbidden(f"The access rule {access_rule_id} cannot be deleted: an application credential uses it.")
        await tx.execute("DELETE FROM access_rules WHERE id = $1", access_rule_id)
