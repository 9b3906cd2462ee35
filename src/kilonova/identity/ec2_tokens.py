"""Tokens for requests that are signed with EC2 credentials. Services that received such requests ask for them."""

from __future__ import annotations

import hmac
from collections.abc import Callable

import orjson

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest
from kilonova.identity.api import Json, api
from kilonova.identity.auth import token_view
from kilonova.identity.credentials import CREDENTIALS, EC2, decrypt, ec2_id
from kilonova.identity.ec2_signatures import SignedRequest, decode_token, s3_signature
from kilonova.identity.logins import LoginRefused, audited_refusals
from kilonova.identity.resources import token_validator
from kilonova.identity.token import Scope

_TEXT: Json = {"type": "string", "maxLength": 16384}
_TEXTS: Json = {"type": "object", "additionalProperties": _TEXT, "maxProperties": 256}
_ACCESS: Json = {"access": {**_TEXT, "maxLength": 255}, "signature": {**_TEXT, "maxLength": 255}}


def _body(key: str, properties: Json, *required: str) -> Json:
    given = {"type": "object", "properties": {**_ACCESS, **properties}, "required": ["access", "signature", *required]}
    return {"type": "object", "properties": {key: given}, "required": [key]}


_EC2 = {"host": _TEXT, "verb": _TEXT, "path": _TEXT, "params": _TEXTS, "headers": _TEXTS, "body_hash": _TEXT}
# Older clients send ec2Credentials.
_EC2_BODY: Json = {
    "anyOf": [_body(key, _EC2, "host", "verb", "path", "params") for key in ("credentials", "ec2Credentials")]
}


@api.route("POST", "/v3/ec2tokens", policy="identity:ec2tokens_validate", body=_EC2_BODY)
async def ec2_token(ctx: Context) -> Response:
    """Get a token for the user who has signed an EC2 request."""
    given = ctx.body.get("credentials") or ctx.body["ec2Credentials"]
    headers = {name.lower(): value for name, value in given.get("headers", {}).items()}
    request = SignedRequest(
        given["verb"], given["host"], given["path"], given["params"], headers, given.get("body_hash", "")
    )
    signed_at, valid_seconds = request.signed_at(), ctx.services.config.identity.signed_request_seconds
    if signed_at is not None and abs(signed_at - ctx.now) > valid_seconds:
        raise BadRequest(f"The request was signed more than {valid_seconds} seconds before or after now.")
    # Some clients sign the host without its port.
    requests = (request, request._replace(host=request.host.partition(":")[0]))
    return await _issue(ctx, given, lambda secret: [each.signature(secret) for each in requests])


@api.route(
    "POST", "/v3/s3tokens", policy="identity:s3tokens_validate", body=_body("credentials", {"token": _TEXT}, "token")
)
async def s3_token(ctx: Context) -> Response:
    """Get a token for the user who has signed an S3 request."""
    given = ctx.body["credentials"]
    signed = decode_token(given["token"])
    return await _issue(ctx, given, lambda secret: [s3_signature(secret, signed)])


async def _issue(ctx: Context, given: Json, expected: Callable[[str], list[str]]) -> Response:
    """A token of the credential's user for its project, if one of the expected signatures is the given one."""
    with audited_refusals(ctx):
        row = await CREDENTIALS.find(ctx, ctx.db, ec2_id(given["access"]))
        keys = orjson.loads(decrypt(ctx, row)) if row is not None and row["type"] == EC2 else {}
        # Computed for unknown access keys too, so that the answers do not differ.
        signatures = expected(keys.get("secret", ""))
        matches = [hmac.compare_digest(each.encode(), given["signature"].encode()) for each in signatures]
        if row is None or keys.get("access") != given["access"] or not any(matches):
            problem = "unknown access key" if not keys else "wrong signature with the access key"
            raise LoginRefused(f"{problem} {given['access']}")
        ctx.audit["target_id"] = row["user_id"]
        scope = Scope("project", row["project_id"])
        issued = await token_validator(ctx).issue(row["user_id"], scope, ["ec2credential"])
        if issued is None:
            raise LoginRefused("the user is disabled, or has no role in the project")
    text, token = issued
    return Response(await token_view(ctx, token), headers={"X-Subject-Token": text, "Vary": "X-Auth-Token"})
