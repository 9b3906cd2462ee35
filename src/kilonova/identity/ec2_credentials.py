"""Routes of EC2 credentials: pairs of an access key and a secret, for one user in one project."""

from __future__ import annotations

import secrets

import orjson

from kilonova.http import Context, Response
from kilonova.http.loop_yielder import collect
from kilonova.identity.api import Json, api, link, list_links
from kilonova.identity.credentials import CREDENTIALS, EC2, decrypt, ec2_id, encrypt, reserve
from kilonova.identity.resources import conflicts, not_found, refuse_delegated, write_transaction
from kilonova.identity.schemas import ID
from kilonova.identity.users import USERS
from kilonova.store import Reader, Row
from kilonova.store.insert import insert_row

_MANY = "/v3/users/{user_id}/credentials/OS-EC2"
_ONE = f"{_MANY}/{{credential_id}}"
_BODY: Json = {"type": "object", "properties": {"tenant_id": ID}, "required": ["tenant_id"]}


def _target(user_id: str) -> Json:
    return {"target.credential.user_id": user_id, **USERS.target(user_id)}


def _authorize(ctx: Context, rule: str, user_id: str) -> None:
    ctx.authorize(rule, _target(user_id))
    refuse_delegated(ctx, "use credentials")


def _view(ctx: Context, row: Row) -> Json:
    keys = orjson.loads(decrypt(ctx, row))
    return {
        "user_id": row["user_id"],
        "tenant_id": row["project_id"],
        "access": keys["access"],
        "secret": keys["secret"],
        "trust_id": None,
        "links": {"self": link(ctx, f"users/{row['user_id']}/credentials/OS-EC2/{keys['access']}")},
    }


@api.route("POST", _MANY, checks=["identity:ec2_create_credential"], body=_BODY, status=201)
async def create(ctx: Context, user_id: str) -> Response:
    """Create an EC2 credential of a user in a project."""
    _authorize(ctx, "identity:ec2_create_credential", user_id)
    project_id = ctx.body["tenant_id"]
    access, secret = secrets.token_hex(16), secrets.token_hex(16)
    row = {
        "id": ec2_id(access),
        "user_id": user_id,
        "project_id": project_id,
        "type": EC2,
        "encrypted_blob": encrypt(ctx, orjson.dumps({"access": access, "secret": secret}).decode()),
        "extra": "{}",
    }
    with conflicts("credential", access):
        async with ctx.db.transaction() as tx:
            await reserve(ctx, tx, user_id, project_id)
            await insert_row(tx, "credentials", row)
    ctx.audit["target_id"] = access
    return Response({"credential": _view(ctx, row)})


@api.route("GET", _MANY, checks=["identity:ec2_list_credentials"])
async def index(ctx: Context, user_id: str) -> Response:
    """List the EC2 credentials of a user."""
    await USERS.get(ctx, ctx.db, user_id, "identity:ec2_list_credentials")
    refuse_delegated(ctx, "use credentials")
    rows = await ctx.db.fetch("SELECT * FROM credentials WHERE user_id = $1 AND type = $2 ORDER BY id", user_id, EC2)
    links = list_links(ctx, f"users/{user_id}/credentials/OS-EC2")
    return Response({"credentials": await collect(_view(ctx, row) for row in rows), "links": links})


async def _find(ctx: Context, db: Reader, user_id: str, access: str, rule: str) -> Row:
    _authorize(ctx, rule, user_id)
    row = await CREDENTIALS.find(ctx, db, ec2_id(access))
    if row is None or row["user_id"] != user_id or row["type"] != EC2:
        raise not_found("credential", access)
    return row


@api.route("GET", _ONE, checks=["identity:ec2_get_credential"])
async def show(ctx: Context, user_id: str, credential_id: str) -> Response:
    """Show an EC2 credential by its access key."""
    row = await _find(ctx, ctx.db, user_id, credential_id, "identity:ec2_get_credential")
    return Response({"credential": _view(ctx, row)})


@api.route("DELETE", _ONE, checks=["identity:ec2_delete_credential"], status=204)
async def delete(ctx: Context, user_id: str, credential_id: str) -> None:
    """Delete an EC2 credential by its access key."""
    async with write_transaction(ctx) as tx:
        row = await _find(ctx, tx, user_id, credential_id, "identity:ec2_delete_credential")
        await tx.execute("DELETE FROM credentials WHERE id = $1", row["id"])
