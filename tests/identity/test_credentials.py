"""Stored credentials: lifecycle, who sees them, and their encryption."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from kilonova.identity.credentials import encrypt_again
from kilonova.identity.token_keys import ConfiguredKeys, KeyRing, new_key
from tests.identity.support import Cloud, cloud
from tests.support import run

EC2_BLOB = '{"access": "AKEY", "secret": "hidden"}'


async def store(c: Cloud, token: str, **values: Any) -> dict[str, Any]:
    made = await c.ok("POST", "/v3/credentials", token, {"credential": values})
    return dict(made["credential"])


def test_credential_is_stored_changed_and_deleted(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            demo, user_id = await c.login("demo"), await c.ident("user", "demo")
            created = await store(c, demo, type="totp", blob="GEZDGNBVGY3TQOJQ", note="phone")
            path = f"/v3/credentials/{created['id']}"
            assert created == {
                "id": created["id"],
                "type": "totp",
                "blob": "GEZDGNBVGY3TQOJQ",
                "user_id": user_id,
                "project_id": None,
                "note": "phone",
                "links": {"self": f"http://cloud.test:1234/identity{path}"},
            }
            assert (await c.ok("GET", path, demo))["credential"] == created
            changed = await c.ok("PATCH", path, demo, {"credential": {"blob": "other", "note": None}})
            assert changed["credential"]["blob"] == "other"
            assert "note" not in changed["credential"]
            await c.ok("DELETE", path, demo)
            assert (await c.call("GET", path, await c.login("admin"))).status == 404

    run(scenario())


def test_ec2_credential_is_named_by_its_access_key(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo = await c.login("admin"), await c.ident("project", "demo")
            created = await store(c, admin, type="ec2", blob=EC2_BLOB, project_id=demo)
            assert created["id"] == hashlib.sha256(b"AKEY").hexdigest()
            assert created["user_id"] == await c.ident("user", "admin")
            same = {"type": "ec2", "blob": EC2_BLOB, "project_id": demo}
            assert (await c.call("POST", "/v3/credentials", admin, {"credential": same})).status == 409
            for wrong, status in (
                ({"project_id": None}, 400),
                ({"project_id": "none"}, 404),
                ({"user_id": "none"}, 404),
                ({"blob": "text"}, 400),
                ({"blob": '{"access": "A"}'}, 400),
                ({"blob": None}, 400),
            ):
                body = {"credential": {**same, **wrong}}
                assert (await c.call("POST", "/v3/credentials", admin, body)).status == status, wrong
            path = f"/v3/credentials/{created['id']}"
            for wrong in (
                {"user_id": await c.ident("user", "demo")},
                {"project_id": await c.ident("project", "admin")},
                {"type": "totp"},
                {"blob": "text"},
                {"blob": '{"access": "OTHER", "secret": "hidden"}'},
            ):
                assert (await c.call("PATCH", path, admin, {"credential": wrong})).status == 400, wrong
            fresh = {"blob": '{"access": "AKEY", "secret": "fresh"}'}
            assert (await c.ok("PATCH", path, admin, {"credential": fresh}))["credential"]["blob"] == fresh["blob"]
            # It ends with the project.
            await c.ok("DELETE", f"/v3/projects/{demo}", admin)
            assert (await c.call("GET", path, admin)).status == 404

    run(scenario())


def test_users_see_their_own_credentials_only(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo, reader = await c.login("admin"), await c.login("demo"), await c.login("demo-reader")
            own, other = await store(c, demo, type="totp", blob="a"), await store(c, reader, type="cert", blob="b")

            async def listed(token: str, query: str = "") -> set[str]:
                found = (await c.ok("GET", f"/v3/credentials{query}", token))["credentials"]
                return {entry["id"] for entry in found}

            assert await listed(demo) == {own["id"]}
            assert await listed(admin) == {own["id"], other["id"]}
            assert await listed(admin, "?type=cert") == {other["id"]}
            assert await listed(admin, f"?user_id={own['user_id']}") == {own["id"]}
            assert await listed(demo, f"?user_id={own['user_id']}&type=cert") == set()
            foreign = f"/v3/credentials/{other['id']}"
            for method, path, body in (
                ("GET", f"/v3/credentials?user_id={other['user_id']}", None),
                ("GET", foreign, None),
                ("GET", "/v3/credentials/none", None),
                ("PATCH", foreign, {"credential": {"blob": "c"}}),
                ("DELETE", foreign, None),
                ("POST", "/v3/credentials", {"credential": {"type": "t", "blob": "c", "user_id": other["user_id"]}}),
            ):
                assert (await c.call(method, path, demo, body)).status == 403, path
            # A deleted user keeps none.
            await c.ok("DELETE", f"/v3/users/{other['user_id']}", admin)
            assert await listed(admin) == {own["id"]}

    run(scenario())


def test_database_has_no_credential_in_plain_text(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            demo = await c.login("demo")
            created = await store(c, demo, type="ec2", blob=EC2_BLOB, project_id=await c.ident("project", "demo"))
            (row,) = await c.services.db.fetch("SELECT * FROM credentials")
            assert "hidden" not in str(row)
            # The file with the keys is private.
            (path,) = tmp_path.glob("credential-keys")
            assert path.stat().st_mode & 0o777 == 0o600
            # After a rotation the newest key alone is enough.
            old, new = path.read_text().split()[0], new_key()
            assert await encrypt_again(c.services.db, KeyRing(ConfiguredKeys([new, old]))) == (1, [])
            c.services.credential_keys = KeyRing(ConfiguredKeys([new]))
            shown = await c.ok("GET", f"/v3/credentials/{created['id']}", demo)
            assert shown["credential"]["blob"] == EC2_BLOB
            assert await encrypt_again(c.services.db, KeyRing(ConfiguredKeys([old]))) == (0, [created["id"]])

    run(scenario())


def test_cloud_without_keys_stores_no_credentials(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            c.services.credential_keys = None
            body = {"credential": {"type": "totp", "blob": "a"}}
            refused = await c.call("POST", "/v3/credentials", await c.login("demo"), body)
            assert refused.status == 501
            assert "identity.credential_keys" in refused.json()["error"]["message"]

    run(scenario())


def test_tokens_with_fewer_roles_use_no_credentials(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            demo, user_id = await c.login("demo"), await c.ident("user", "demo")
            created = await store(c, demo, type="totp", blob="a")
            issued = await c.tokens.validate(demo)
            assert issued is not None

            async def validate(token: str) -> Any:
                return structs.replace(issued, methods=("ec2credential",))

            monkeypatch.setattr(c.tokens, "validate", validate)
            project = {"tenant_id": await c.ident("project", "demo")}
            for method, path, body in (
                ("POST", "/v3/credentials", {"credential": {"type": "totp", "blob": "b"}}),
                ("PATCH", f"/v3/credentials/{created['id']}", {"credential": {"blob": "b"}}),
                ("POST", f"/v3/users/{user_id}/credentials/OS-EC2", project),
                ("GET", f"/v3/credentials/{created['id']}", None),
                ("GET", "/v3/credentials", None),
                ("GET", f"/v3/users/{user_id}/credentials/OS-EC2", None),
            ):
                assert (await c.call(method, path, demo, body)).status == 403, path

    run(scenario())


def test_number_of_credentials_of_a_user_is_limited(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            c.services.config.identity.credentials_per_user = 3
            reader, admin = await c.login("demo-reader"), await c.login("admin")
            user_id, project_id = await c.ident("user", "demo-reader"), await c.ident("project", "demo")
            credential = {"credential": {"type": "totp", "blob": "b", "user_id": user_id}}
            ec2 = f"/v3/users/{user_id}/credentials/OS-EC2"
            answers = await asyncio.gather(
                *(c.call("POST", "/v3/credentials", reader, credential) for _ in range(4)),
                *(c.call("POST", ec2, admin, {"tenant_id": project_id}) for _ in range(4)),
            )
            assert sorted(answer.status for answer in answers) == [201] * 3 + [403] * 5
            (message, *_) = {answer.json()["error"]["message"] for answer in answers if answer.status == 403}
            assert message == "Unable to create additional credentials, maximum of 3 already exceeded for user."
            await store(c, admin, type="totp", blob="b")  # another user's do not count
            listed = (await c.ok("GET", "/v3/credentials", reader))["credentials"]
            await c.ok("DELETE", f"/v3/credentials/{listed[0]['id']}", reader)
            await store(c, reader, **credential["credential"])
            c.services.config.identity.credentials_per_user = -1
            await store(c, reader, **credential["credential"])

    run(scenario())
