"""Credentials that users store: EC2 keys, secrets of one-time passwords, and others. They are encrypted at rest."""

from __future__ import annotations

import hashlib
from typing import ClassVar

import orjson

from kilonova.http import Context
from kilonova.http.errors import BadRequest, Forbidden, HttpError, NotSupported
from kilonova.identity.api import Json
from kilonova.identity.resources import Resource, lock, refuse_delegated
from kilonova.identity.schemas import ID, ID_OR_NULL, NAME, QUERY_TEXT
from kilonova.identity.token_keys import KeyRing
from kilonova.store import Database, Reader, Row, Transaction
from kilonova.store.conditions import Conditions

EC2 = "ec2"
_MAX_BLOB_LENGTH = 16384


class Credentials(Resource):
    noun = "credential"
    properties: ClassVar[Json] = {
        "type": NAME,
        "blob": {"type": "string", "minLength": 1, "maxLength": _MAX_BLOB_LENGTH},
        "user_id": ID,
        "project_id": ID_OR_NULL,
    }
    required = ("type", "blob")
    known = ("type", "blob", "user_id", "project_id", "encrypted_blob")
    columns = ("type", "project_id")
    defaults: ClassVar[Json] = {"project_id": None}
    filters = ()
    flags = ()
    list_query: ClassVar[Json] = {"user_id": QUERY_TEXT, "type": QUERY_TEXT}
    order: ClassVar[tuple[str, ...]] = ("id",)

    def target(self, item_id: str, row: Row | None = None) -> Json:
        return {} if row is None else {"target.credential.user_id": row["user_id"]}

    def authorize_list(self, ctx: Context) -> None:
        refuse_delegated(ctx, "use credentials")
        ctx.authorize(self.rule("list"), {"target.credential.user_id": ctx.query_one("user_id", ctx.token.user_id)})

    def where(self, ctx: Context) -> Conditions:
        """Callers that may not list all credentials get their own."""
        where = Conditions()
        user_id = ctx.query_one("user_id")
        if user_id is None and not ctx.may(self.rule("list"), {}):
            user_id = ctx.token.user_id
        for column, value in (("user_id", user_id), ("type", ctx.query_one("type"))):
            if value is not None:
                where.add(f"{column} = ?", value)
        return where

    def attributes(self, row: Row) -> Json:
        return {key: row[key] for key in ("type", "user_id", "project_id")}

    def view(self, ctx: Context, row: Row) -> Json:
        return {**super().view(ctx, row), "blob": decrypt(ctx, row)}

    async def get(self, ctx: Context, db: Reader, item_id: str, rule: str | None = None, *, verb: str = "get") -> Row:
        refuse_delegated(ctx, "use credentials")
        return await super().get(ctx, db, item_id, rule, verb=verb)

    async def place(self, ctx: Context, body: Json) -> Json:
        refuse_delegated(ctx, "use credentials")
        return {"user_id": body.get("user_id") or ctx.token.user_id}

    async def values(self, ctx: Context, body: Json) -> Json:
        values = await super().values(ctx, body)
        return {**values, "encrypted_blob": encrypt(ctx, body["blob"])} if "blob" in body else values

    async def insert(self, ctx: Context, tx: Transaction, row: Json, body: Json) -> None:
        if row["type"] == EC2:
            if row["project_id"] is None:
                raise BadRequest("project_id is needed for a credential of the type ec2.")
            row["id"] = ec2_id(_ec2_keys(body["blob"])["access"])
        await reserve(ctx, tx, row["user_id"], row["project_id"])
        await super().insert(ctx, tx, row, body)

    async def check_update(self, ctx: Context, tx: Transaction, row: Row, body: Json) -> None:
        """A credential keeps its owner and kind, so that nobody gets one for roles of others."""
        for key in ("type", "user_id", "project_id"):
            if body.get(key, row[key]) != row[key]:
                raise BadRequest(f"The attribute {key} of a credential cannot be changed.")
        if row["type"] == EC2 and "blob" in body and ec2_id(_ec2_keys(body["blob"])["access"]) != row["id"]:
            raise BadRequest("blob: the access key of a credential cannot be changed, because it names the credential.")


CREDENTIALS = Credentials()


def ec2_id(access: str) -> str:
    """The id of a credential with this access key."""
    return hashlib.sha256(access.encode()).hexdigest()


def _ec2_keys(blob: str) -> dict[str, str]:
    try:
        keys = orjson.loads(blob)
    except ValueError:
        keys = None
    if not isinstance(keys, dict) or not all(isinstance(keys.get(key), str) for key in ("access", "secret")):
        raise BadRequest("blob: a JSON object with access and secret is expected for the type ec2.")
    return {"access": keys["access"], "secret": keys["secret"]}


async def reserve(ctx: Context, tx: Transaction, user_id: str, project_id: str | None) -> None:
    """Lock project and user of a new credential, and check that the user does not have too many."""
    if project_id is not None:
        await lock(tx, "projects", project_id)
    await lock(tx, "users", user_id)
    limit = ctx.services.config.identity.credentials_per_user
    stored = await tx.fetch_value("SELECT COUNT(*) FROM credentials WHERE user_id = $1", user_id)
    if 0 <= limit <= stored:
        raise Forbidden(f"Unable to create additional credentials, maximum of {limit} already exceeded for user.")


def encrypt(ctx: Context, blob: str) -> str:
    return _keys(ctx).encrypt(blob.encode())


def decrypt(ctx: Context, row: Row) -> str:
    raw = _keys(ctx).decrypt(row["encrypted_blob"])
    if raw is None:
        raise HttpError(f"The credential {row['id']} cannot be decrypted: its key is missing.")
    return raw.decode()


def _keys(ctx: Context) -> KeyRing:
    if ctx.services.credential_keys is None:
        raise NotSupported("This cloud stores no credentials: its configuration has no identity.credential_keys.")
    return ctx.services.credential_keys


async def encrypt_again(db: Database, keys: KeyRing) -> tuple[int, list[str]]:
    """Encrypt all credentials with the newest key. Returns their number, and the ids of those that no key decrypts."""
    lost: list[str] = []
    rows = await db.fetch("SELECT id, encrypted_blob FROM credentials ORDER BY id")
    for row in rows:
        raw = keys.decrypt(row["encrypted_blob"])
        if raw is None:
            lost.append(row["id"])
            continue
        async with db.transaction() as tx:
            # A credential that has been changed meanwhile has the newest key already.
            sql = "UPDATE credentials SET encrypted_blob = $3 WHERE id = $1 AND encrypted_blob = $2"
            await tx.execute(sql, row["id"], row["encrypted_blob"], keys.encrypt(raw))
    return len(rows) - len(lost), lost
