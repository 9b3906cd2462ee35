"""Key pairs: import, generation below 2.92, owners, quotas, and the views of each version."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support import run
from tests.support.cloud import Cloud, cloud, fault
from tests.support.route_coverage import proves

ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@here"
RSA = (
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQDx8nkQv/zgGgB4rMYmIf+6A4l6Rr+o/6lHBQdW5aYd44bd8JttDCE/F/pNRr0l"
    "RE+PiqSPO8nDPHw0010JeMH9gYgnnFlyY3/OcJ02RhIPyyxYpv9FhY+2YiUkpwFOcLImyrxEsYXpD/0d3ac30bNH6Sw9JD9UZHYc"
    "pSxsIbECHw== Generated-by-Nova"
)


async def create(c: Cloud, name: str = "key", **options: Any) -> dict[str, Any]:
    body = {"name": name, "public_key": options.pop("public_key", ED25519), **options.pop("body", {})}
    answer = await c.post("/os-keypairs", {"keypair": body}, **options)
    assert answer.status in (200, 201), answer.body
    keypair: dict[str, Any] = answer.json()["keypair"]
    return keypair


async def names(c: Cloud, query: str = "", **options: Any) -> list[str]:
    answer = await c.get(f"/os-keypairs{query}", **options)
    assert answer.status == 200, answer.body
    return [entry["keypair"]["name"] for entry in answer.json()["keypairs"]]


@proves("POST /os-keypairs", "GET /os-keypairs", "GET /os-keypairs/{name}", "DELETE /os-keypairs/{name}")
def test_import_show_delete(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            made = await create(c, version="latest", public_key=RSA)
            assert made == {
                "name": "key",
                "type": "ssh",
                "fingerprint": "1e:2c:9b:56:79:4b:45:77:f9:ca:7a:98:2c:b0:d5:3c",
                "public_key": RSA,
                "user_id": "member-id",
            }
            shown = (await c.get("/os-keypairs/key", version="latest")).json()["keypair"]
            assert shown.items() >= made.items()
            assert (shown["deleted"], shown["deleted_at"], shown["updated_at"]) == (False, None, None)
            listed = (await c.get("/os-keypairs", version="latest")).json()
            assert listed == {"keypairs": [{"keypair": {k: v for k, v in made.items() if k != "user_id"}}]}
            gone = await c.delete("/os-keypairs/key", version="latest")
            assert (gone.status, gone.body) == (204, b"")
            assert fault(await c.get("/os-keypairs/key"))[:2] == (404, "itemNotFound")
            assert (await c.delete("/os-keypairs/key")).status == 404
            assert await names(c) == []

    run(scenario())


def test_type_and_statuses_by_version(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            answer = await c.post("/os-keypairs", {"keypair": {"name": "a", "public_key": ED25519}}, version="2.1")
            assert answer.status == 200
            assert set(answer.json()["keypair"]) == {"name", "fingerprint", "public_key", "user_id"}
            assert "type" not in (await c.get("/os-keypairs/a", version="2.1")).json()["keypair"]
            assert (await c.get("/os-keypairs/a", version="2.2")).json()["keypair"]["type"] == "ssh"
            typed = {"keypair": {"name": "b", "public_key": ED25519, "type": "ssh"}}
            assert (await c.post("/os-keypairs", typed, version="2.1")).status == 400
            assert (await c.post("/os-keypairs", typed, version="2.2")).status == 201
            assert (await c.delete("/os-keypairs/a", version="2.1")).status == 202
            assert (await c.delete("/os-keypairs/b", version="2.2")).status == 204

    run(scenario())


def test_names_are_unique_per_user(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await create(c)
            again = await c.post("/os-keypairs", {"keypair": {"name": "key", "public_key": RSA}})
            assert fault(again)[:2] == (409, "conflictingRequest")
            await create(c, as_="other")
            assert await names(c, as_="other") == ["key"]

    run(scenario())


@pytest.mark.parametrize("kind", ["ssh", "x509"])
def test_generate_below_2_92(sqlite_url: str, kind: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            answer = await c.post("/os-keypairs", {"keypair": {"name": "key", "type": kind}}, version="2.91")
            made = answer.json()["keypair"]
            assert answer.status == 201
            assert "PRIVATE KEY" in made["private_key"]
            assert "private_key" not in (await c.get("/os-keypairs/key", version="2.91")).json()["keypair"]
            assert made["public_key"].startswith("ssh-rsa " if kind == "ssh" else "-----BEGIN CERTIFICATE-----")
            # A generated key can be imported, with the same fingerprint.
            body = {"type": kind}
            imported = await create(c, "copy", public_key=made["public_key"], version="2.91", body=body)
            assert imported["fingerprint"] == made["fingerprint"]
            assert "private_key" not in imported

    run(scenario())


def test_public_key_is_required_and_names_may_contain_at_from_2_92(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            assert (await c.post("/os-keypairs", {"keypair": {"name": "key"}}, version="2.92")).status == 400
            address = "me.and@my.domain mooh."
            refused = await c.post(
                "/os-keypairs", {"keypair": {"name": address, "public_key": ED25519}}, version="2.91"
            )
            assert refused.status == 400
            assert (await create(c, address, version="2.92"))["name"] == address

    run(scenario())


@pytest.mark.parametrize(
    "public_key",
    [
        "",
        "ssh-rsa JUNK nova@ubuntu",
        "ssh-rsa",
        "nonsense",
        "ssh-rsa !!!! me",
        "ssh-rsa " + ED25519.split()[1],
        ED25519[:-20],
        "ssh-zzz AAAAB3NzaC16eno=",
        "ssh-ed25519 AAAA",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
    ],
)
@pytest.mark.parametrize("kind", ["ssh", "x509"])
def test_invalid_keys_are_refused(sqlite_url: str, kind: str, public_key: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            body = {"keypair": {"name": "key", "public_key": public_key, "type": kind}}
            assert fault(await c.post("/os-keypairs", body, version="latest"))[:2] == (400, "badRequest")
            assert await names(c) == []

    run(scenario())


@pytest.mark.parametrize("name", ["", " padded ", "a/b", "k" * 256, "tab\t", "naïve", None, 7])
def test_invalid_names_are_refused(sqlite_url: str, name: Any) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            body = {"keypair": {"name": name, "public_key": ED25519}}
            assert (await c.post("/os-keypairs", body, version="latest")).status == 400

    run(scenario())


def test_administrators_use_user_id_from_2_10(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            made = await create(c, version="2.10", as_="admin", body={"user_id": "member-id"})
            assert made["user_id"] == "member-id"
            assert await names(c) == ["key"]
            assert await names(c, as_="admin", version="2.10") == []
            assert await names(c, "?user_id=member-id", as_="admin", version="2.10") == ["key"]
            shown = await c.get("/os-keypairs/key?user_id=member-id", as_="admin", version="2.10")
            assert shown.json()["keypair"]["user_id"] == "member-id"
            for method, path in (("GET", "/os-keypairs"), ("GET", "/os-keypairs/key"), ("DELETE", "/os-keypairs/key")):
                refused = await c.request(method, f"{path}?user_id=member-id", as_="other", version="2.10")
                assert refused.status == 403
            body = {"keypair": {"name": "b", "public_key": ED25519, "user_id": "member-id"}}
            assert (await c.post("/os-keypairs", body, as_="other", version="2.10")).status == 403
            assert (await c.post("/os-keypairs", body, as_="admin", version="2.9")).status == 400
            # Below 2.10 `user_id` is ignored, so these are the caller's own.
            assert await names(c, "?user_id=member-id", as_="admin", version="2.9") == []
            gone = await c.delete("/os-keypairs/key?user_id=member-id", as_="admin", version="2.10")
            assert gone.status == 204
            assert await names(c) == []

    run(scenario())


def test_pages_from_2_35(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, api__max_limit=3) as c:
            for name in ("d", "b", "e", "a", "c"):
                await create(c, name)
            assert await names(c, version="2.34") == ["a", "b", "c", "d", "e"]
            assert await names(c, "?limit=1", version="2.34") == ["a", "b", "c", "d", "e"]
            assert await names(c, version="2.35") == ["a", "b", "c"]
            assert await names(c, "?limit=2&marker=c", version="2.35") == ["d", "e"]
            body = (await c.get("/os-keypairs?limit=2&marker=a", version="2.35")).json()
            (link,) = body["keypairs_links"]
            assert link["href"].endswith("/os-keypairs?limit=2&marker=c")
            assert (await c.get("/os-keypairs?marker=x", version="2.35")).status == 400

    run(scenario())


def test_unknown_query_keys_are_refused_from_2_75(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            await create(c)
            for path in ("/os-keypairs", "/os-keypairs/key"):
                assert (await c.get(f"{path}?colour=red", version="2.74")).status == 200
                assert (await c.get(f"{path}?colour=red", version="2.75")).status == 400
            assert (await c.delete("/os-keypairs/key?colour=red", version="2.75")).status == 400

    run(scenario())


def test_quota_with_concurrent_requests(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, quota__key_pairs=3) as c:
            body = [{"keypair": {"name": f"k{number}", "public_key": ED25519}} for number in range(8)]
            answers = await asyncio.gather(*(c.post("/os-keypairs", each) for each in body))
            assert sorted(answer.status for answer in answers) == [200] * 3 + [403] * 5
            refused = next(answer for answer in answers if answer.status == 403)
            assert fault(refused) == (403, "forbidden", "Quota exceeded, too many key pairs.")
            assert len(await names(c)) == 3

    run(scenario())


def test_unlimited_quota(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, quota__key_pairs=-1) as c:
            await create(c)

    run(scenario())
