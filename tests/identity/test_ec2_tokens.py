"""EC2 credentials, and tokens for requests that keystoneclient has signed with them."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from typing import Any

from keystoneclient.contrib.ec2.utils import Ec2Signer

from kilonova import clock
from kilonova.http.client import ClientResponse
from tests.identity.support import REFUSED, SYSTEM, Cloud, cloud, project_scope, token_auth
from tests.support import run


async def new_keys(c: Cloud, token: str, user_id: str = "", project_id: str = "") -> dict[str, Any]:
    """A new EC2 credential; by default of the user demo in the project demo."""
    user_id = user_id or await c.ident("user", "demo")
    project_id = project_id or await c.ident("project", "demo")
    made = await c.ok("POST", f"/v3/users/{user_id}/credentials/OS-EC2", token, {"tenant_id": project_id})
    return dict(made["credential"])


def test_ec2_credentials_of_a_user(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo, reader = await c.login("admin"), await c.login("demo"), await c.login("demo-reader")
            created = await new_keys(c, demo)
            path = f"/v3/users/{created['user_id']}/credentials/OS-EC2"
            one = f"{path}/{created['access']}"
            assert created == {
                "access": created["access"],
                "secret": created["secret"],
                "user_id": await c.ident("user", "demo"),
                "tenant_id": await c.ident("project", "demo"),
                "trust_id": None,
                "links": {"self": f"http://cloud.test:1234/identity{one}"},
            }
            assert (await c.ok("GET", path, demo))["credentials"] == [created]
            assert (await c.ok("GET", one, demo))["credential"] == created
            assert len((await c.ok("GET", "/v3/credentials?type=ec2", demo))["credentials"]) == 1
            for token in (reader, await c.login("demo-manager")):
                for method, place in (("GET", path), ("GET", one), ("DELETE", one), ("GET", f"{path}/none")):
                    assert (await c.call(method, place, token)).status == 403
            body = {"tenant_id": created["tenant_id"]}
            own = f"/v3/users/{await c.ident('user', 'demo-reader')}/credentials/OS-EC2"
            assert (await c.call("POST", own, reader, body)).status == 403  # readers create nothing
            assert (await c.call("POST", path, demo, {"tenant_id": "none"})).status == 404
            # The access key of another user's credential is unknown.
            other = await new_keys(c, admin, await c.ident("user", "admin"))
            assert (await c.call("GET", f"{path}/{other['access']}", demo)).status == 404
            await c.ok("DELETE", one, demo)
            assert (await c.call("DELETE", one, demo)).status == 404

    run(scenario())


def signed(keys: dict[str, Any], version: int, **changes: Any) -> dict[str, Any]:
    """The body for a request that keystoneclient has signed."""
    now = clock.iso(clock.now())
    given: dict[str, Any] = {"host": "ec2.test:8773", "verb": "GET", "path": "/services/Cloud", "headers": {}}
    if version == 2:
        params = {"Action": "Describe It", "AWSAccessKeyId": keys["access"], "Timestamp": now, "SignatureVersion": "2"}
        given["params"] = {**params, "SignatureMethod": "HmacSHA256"}
    else:
        stamp = now.replace("-", "").replace(":", "")
        scope = f"{stamp[:8]}/region/ec2/aws4_request"
        given |= {"params": {"Action": "Describe It"}, "body_hash": hashlib.sha256(b"").hexdigest()}
        given["headers"] = {
            "X-Amz-Date": stamp,
            "Host": "ec2.test:8773",
            "Authorization": f"AWS4-HMAC-SHA256 Credential={keys['access']}/{scope},"
            "SignedHeaders=host;x-amz-date,Signature=x",
        }
    given |= changes
    signature = Ec2Signer(keys["secret"]).generate({**given, "params": dict(given["params"])})
    return {"credentials": {**given, "access": keys["access"], "signature": signature}}


async def token_for(c: Cloud, caller: str, body: dict[str, Any], path: str = "/v3/ec2tokens") -> ClientResponse:
    return await c.call("POST", path, caller, body)


def test_signed_request_gets_a_token(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            service, keys = await c.login("kilonova"), await new_keys(c, await c.login("demo"))
            for body in (
                signed(keys, 2),
                signed(keys, 4),
                signed(keys, 4, verb="POST"),
                {"ec2Credentials": signed(keys, 2)["credentials"]},
            ):
                response = await token_for(c, service, body)
                assert response.status == 200, response.body
                token = response.json()["token"]
                assert (token["user"]["name"], token["project"]["name"]) == ("demo", "demo")
                assert token["methods"] == ["ec2credential"]
                assert [role["name"] for role in token["roles"]] == ["member", "reader"]
                assert await c.works(response.headers["x-subject-token"])
            # Some clients sign the host without the port.
            without = signed(keys, 2, host="ec2.test")
            without["credentials"]["host"] = "ec2.test:8773"
            assert (await token_for(c, service, without)).status == 200

    run(scenario())


def test_token_of_ec2_credential_is_for_one_project_only(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            service, admin = await c.login("kilonova"), await c.login("admin")
            own = await c.ident("user", "admin"), await c.ident("project", "admin")
            issued = await token_for(c, service, signed(await new_keys(c, admin, *own), 4))
            token = issued.headers["x-subject-token"]
            same = await c.authenticate(token_auth(token, project_scope("admin")))
            unscoped = await c.authenticate(token_auth(token, "unscoped"))
            for response in (same, unscoped):
                assert response.status == 201, response.body
            demo = await c.ident("user", "demo"), await c.ident("project", "demo")
            trust = {"trustor_user_id": demo[0], "trustee_user_id": own[0], "project_id": demo[1]}
            body = {"trust": {**trust, "impersonation": True, "roles": [{"name": "member"}]}}
            created = await c.ok("POST", "/v3/OS-TRUST/trusts", await c.login("demo"), body)
            of_trust = {"OS-TRUST:trust": {"id": created["trust"]["id"]}}
            for parent in (token, same.headers["x-subject-token"], unscoped.headers["x-subject-token"]):
                for scope in (SYSTEM, {"domain": {"id": "default"}}, of_trust):
                    assert (await c.authenticate(token_auth(parent, scope))).status == 403
            for scope in (SYSTEM, of_trust):
                assert (await c.authenticate(token_auth(await c.login("admin"), scope))).status == 201

    run(scenario())


def test_request_signed_without_time_gets_a_token(database_url: str, tmp_path: Path) -> None:
    """Heat signs alarm URLs so, because they are valid for the whole life of a stack."""

    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            service, keys = await c.login("kilonova"), await new_keys(c, await c.login("demo"))
            params = {"AWSAccessKeyId": keys["access"], "SignatureVersion": "2", "SignatureMethod": "HmacSHA256"}
            body = signed(keys, 2, verb="POST", params=params)
            assert (await token_for(c, service, body)).status == 200
            # The time of another request is part of its signature.
            timed = signed(keys, 2)
            del timed["credentials"]["params"]["Timestamp"]
            assert (await token_for(c, service, timed)).status == 401
            dateless = signed(keys, 4)
            del dateless["credentials"]["headers"]["X-Amz-Date"]
            assert (await token_for(c, service, dateless)).status == 400

    run(scenario())


def test_signed_request_is_valid_as_long_as_the_setting_says(database_url: str, tmp_path: Path) -> None:
    """Heat's wait conditions may take longer than 15 minutes, and their URLs have the time of their creation."""

    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            service, keys = await c.login("kilonova"), await new_keys(c, await c.login("demo"))
            params = signed(keys, 2)["credentials"]["params"]
            old = signed(keys, 2, params={**params, "Timestamp": clock.iso(clock.now() - 1800)})
            refused = await token_for(c, service, old)
            assert refused.status == 400
            assert "more than 900 seconds" in refused.json()["error"]["message"]
            c.services.config.identity.signed_request_seconds = 3600
            assert (await token_for(c, service, old)).status == 200

    run(scenario())


def test_wrong_signatures_are_refused(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            service, demo = await c.login("kilonova"), await c.login("demo")
            keys = await new_keys(c, demo)
            for version in (2, 4):
                right = signed(keys, version)["credentials"]
                for wrong in (
                    {"signature": "x"},
                    {"path": "/other"},
                    {"params": {**right["params"], "Action": "Terminate"}},
                    {"access": "unknown"},
                ):
                    refused = await token_for(c, service, {"credentials": {**right, **wrong}})
                    assert (refused.status, refused.json()) == (401, REFUSED), wrong
            for wrong in (
                {"params": {"SignatureVersion": "1", "Timestamp": clock.iso(clock.now())}},
                {"params": {**signed(keys, 2)["credentials"]["params"], "Timestamp": "soon"}},
                {"params": {**signed(keys, 2)["credentials"]["params"], "Timestamp": "2020-01-01T00:00:00Z"}},
            ):
                body = {"credentials": {**signed(keys, 2)["credentials"], **wrong}}
                assert (await token_for(c, service, body)).status == 400, wrong
            # An old request does not become a new one by headers that its signature does not protect.
            params = {**signed(keys, 2)["credentials"]["params"], "Timestamp": "2020-01-01T00:00:00Z"}
            old = signed(keys, 2, params=params)
            old["credentials"]["headers"] = signed(keys, 4)["credentials"]["headers"]
            assert (await token_for(c, service, old)).status == 400
            # A scope with thousands of parts would take a signature for each.
            long = signed(keys, 4)
            authorization = long["credentials"]["headers"]["Authorization"].replace("/ec2/", "/" * 5000)
            long["credentials"]["headers"]["Authorization"] = authorization
            refused = await token_for(c, service, long)
            assert (refused.status, "credential scope" in refused.json()["error"]["message"]) == (400, True)
            # Only services and administrators get tokens for others.
            assert (await token_for(c, demo, signed(keys, 2))).status == 403
            # A credential of another type is no access key.
            blob = '{"access": "A", "secret": "S"}'
            await c.ok("POST", "/v3/credentials", demo, {"credential": {"type": "totp", "blob": blob}})
            assert (await token_for(c, service, signed({"access": "A", "secret": "S"}, 2))).status == 401
            # The user needs a role in the project still.
            await c.grant(await c.login("admin"), keys["user_id"], "demo", "member", "DELETE")
            assert (await token_for(c, service, signed(keys, 2))).status == 401

    run(scenario())


def test_signed_s3_request_gets_a_token(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            service, keys = await c.login("kilonova"), await new_keys(c, await c.login("demo"))
            text = b"GET\n\n\nThu, 01 Jan 2026 00:00:00 GMT\n/bucket/\xc3\xa9"
            digest = hmac.digest(keys["secret"].encode(), text, "sha1")
            version_2 = {"token": urlsafe_b64encode(text).decode(), "signature": b64encode(digest).decode()}
            scope = ["20260101", "region", "s3", "aws4_request"]
            lines = ["AWS4-HMAC-SHA256", "20260101T000000Z", "/".join(scope), hashlib.sha256(b"request").hexdigest()]
            key = f"AWS4{keys['secret']}".encode()
            for part in (*scope, "\n".join(lines)):
                key = hmac.digest(key, part.encode(), "sha256")
            version_4 = {"token": b64encode("\n".join(lines).encode()).decode(), "signature": key.hex()}
            for given in (version_2, version_4):
                body = {"credentials": {"access": keys["access"], **given}}
                response = await token_for(c, service, body, "/v3/s3tokens")
                assert response.status == 200, response.body
                assert response.json()["token"]["user"]["name"] == "demo"
                body["credentials"]["signature"] = "wrong"
                assert (await token_for(c, service, body, "/v3/s3tokens")).status == 401
            body["credentials"]["token"] = "é"
            assert (await token_for(c, service, body, "/v3/s3tokens")).status == 400

    run(scenario())
