"""Routes of access rules, and the share's actions that allow and deny access.

The service exports no share over a network. The rules say which hosts may present a share to guests.
"""

from __future__ import annotations

import ipaddress

from kilonova import clock
from kilonova.http import Context, Response
from kilonova.http.api import multi
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import BOOLEAN, STRING, UUID, Schema, closed_object, is_true
from kilonova.ids import new_id
from kilonova.share.access_rules import model
from kilonova.share.access_rules.model import AccessRule
from kilonova.share.api import api, share_action
from kilonova.share.locks import model as locks
from kilonova.share.schemas import DESCRIPTION, MAX_METADATA, METADATA, METADATA_OR_NULL
from kilonova.share.shares import model as shares
from kilonova.store import Transaction
from kilonova.store.insert import insert_row
from kilonova.store.records import encode_document

RULES = "/share-access-rules"
ONE = RULES + "/{rule_id}"
LIST, GET = "share_access_rule:index", model.GET
SET_METADATA, DELETE_METADATA = "share_access_metadata:update", "share_access_metadata:delete"
ALLOW, DENY = "share:allow_access", "share:deny_access"
_HIDDEN = "******"
_ALLOW_BODY = closed_object(
    {
        "access_type": {"type": "string", "minLength": 1, "maxLength": 255},
        "access_to": {"type": "string", "minLength": 1, "maxLength": 255},
        "access_level": {"type": ["string", "null"], "enum": ["rw", "ro", None]},
        "metadata": METADATA_OR_NULL,
        "lock_visibility": BOOLEAN,
        "lock_deletion": BOOLEAN,
        "lock_reason": DESCRIPTION,
    },
    ["access_type", "access_to"],
)
_DENY_BODY = closed_object({"access_id": UUID, "unrestrict": BOOLEAN}, ["access_id"])
_QUERY: dict[str, Schema] = {"share_id": STRING, "*": multi(STRING)}
_METADATA_BODY = closed_object({"metadata": METADATA}, ["metadata"])


@api.route("GET", RULES, checks=[LIST], query=_QUERY)
async def index(ctx: Context) -> Response:
    """List the access rules of a share."""
    share_id = ctx.query_one("share_id")
    if not share_id:
        raise BadRequest("The field share_id is required: name the share whose access rules to list.")
    await shares.find(ctx, ctx.db, share_id, rule=LIST)
    rules = await model.of_share(ctx.db, share_id)
    hidden = await model.hidden(ctx, ctx.db, rules)
    return Response({"access_list": [_view(rule, rule.id in hidden) for rule in rules]})


@api.route("GET", ONE, checks=[GET])
async def show(ctx: Context, rule_id: str) -> Response:
    """Show an access rule."""
    rule, _ = await model.find(ctx, ctx.db, rule_id)
    hidden = await model.hidden(ctx, ctx.db, [rule])
    return Response({"access": {**_view(rule, rule.id in hidden), "share_id": rule.share_id}})


@api.route("PUT", ONE + "/metadata", checks=[SET_METADATA], body=_METADATA_BODY)
async def set_metadata(ctx: Context, rule_id: str) -> Response:
    """Add to the metadata of an access rule."""
    async with ctx.db.transaction() as tx:
        rule, _ = await model.find(ctx, tx, rule_id, rule=SET_METADATA, lock=True)
        metadata = {**rule.metadata, **ctx.body["metadata"]}
        if len(metadata) > MAX_METADATA:
            raise BadRequest(f"metadata: an access rule has at most {MAX_METADATA} items.")
        await _write_metadata(ctx, tx, rule_id, metadata)
    return Response({"metadata": metadata})


@api.route("DELETE", ONE + "/metadata/{key}", checks=[DELETE_METADATA])
async def delete_metadata(ctx: Context, rule_id: str, key: str) -> None:
    """Delete a metadata item of an access rule."""
    async with ctx.db.transaction() as tx:
        rule, _ = await model.find(ctx, tx, rule_id, rule=DELETE_METADATA, lock=True)
        if key not in rule.metadata:
            raise model.not_found(key)
        metadata = {name: value for name, value in rule.metadata.items() if name != key}
        await _write_metadata(ctx, tx, rule_id, metadata)


@share_action("allow_access", checks=[ALLOW], body=_ALLOW_BODY)
async def allow(ctx: Context, share_id: str) -> Response:
    """Allow access to a share."""
    body = ctx.body["allow_access"]
    rule = AccessRule(
        id=new_id(),
        share_id=share_id,
        access_type=body["access_type"],
        access_to=_address(body["access_type"], body["access_to"]),
        access_level=body.get("access_level") or "rw",
        metadata=body.get("metadata") or {},
        created_at=ctx.now,
        updated_at=ctx.now,
    )
    async with ctx.db.transaction() as tx:
        share = await shares.find(ctx, tx, share_id, rule=ALLOW, lock=True)
        shares.check_available(share, "be accessed")
        if any(found.access_to == rule.access_to for found in await model.of_share(tx, share_id)):
            raise BadRequest(f"Share access {rule.access_type}:{rule.access_to} exists.")
        await insert_row(tx, AccessRule.table, rule.encode())
        for key, action in (("lock_visibility", locks.SHOW), ("lock_deletion", locks.DELETE)):
            if is_true(body.get(key)):
                await locks.insert(ctx, tx, locks.RULE, rule.id, action, body.get("lock_reason"))
    return Response({"access": {**_view(rule, False), "share_id": share_id}})


@share_action("deny_access", checks=[DENY], body=_DENY_BODY, status=202)
async def deny(ctx: Context, share_id: str) -> None:
    """Deny access to a share. With `unrestrict` the locks of the rule are deleted too."""
    body = ctx.body["deny_access"]
    async with ctx.db.transaction() as tx:
        share = await shares.find(ctx, tx, share_id, rule=DENY, lock=True)
        rule = await model.get(tx, body["access_id"])
        if rule is None or rule.share_id != share.id:
            raise model.not_found(body["access_id"])
        if is_true(body.get("unrestrict")):
            for lock in await locks.of_resource(tx, rule.id, locks.DELETE):
                locks.check_owner(ctx, lock)
        else:
            await locks.check_unlocked(tx, rule.id, locks.DELETE)
        await model.delete(tx, rule.id)


async def _write_metadata(ctx: Context, tx: Transaction, rule_id: str, metadata: dict[str, str]) -> None:
    sql = "UPDATE share_access_rules SET metadata = $2, updated_at = $3 WHERE id = $1"
    await tx.execute(sql, rule_id, encode_document(metadata), ctx.now)


def _address(access_type: str, access_to: str) -> str:
    """The address or prefix in its canonical form."""
    if access_type != "ip":
        raise BadRequest(
            f"Invalid access_type {access_type[:80]!r}: shares of the protocol {shares.PROTOCOL} know ip only."
        )
    try:
        network = ipaddress.ip_network(access_to, strict=False)
    except ValueError:
        raise BadRequest(f"Invalid share access: access_to {access_to[:80]!r} is no IP address or prefix.") from None
    return str(network.network_address) if network.num_addresses == 1 else str(network)


def _view(rule: AccessRule, hidden: bool) -> dict[str, object]:
    return {
        "id": rule.id,
        "access_type": rule.access_type,
        "access_to": _HIDDEN if hidden else rule.access_to,
        "access_level": rule.access_level,
        "access_key": _HIDDEN if hidden else None,
        "state": "active",
        "metadata": rule.metadata,
        "created_at": clock.iso_micro(rule.created_at),
        "updated_at": clock.iso_micro(rule.updated_at),
    }
