"""Files for guests (`personality`): who gets them, their quota, and where their contents are stored."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.compute.servers.moves import action_refusal
from tests.compute.servers.support import act, create_refusal, guest_on
from tests.support import run
from tests.support.cloud import DEMO
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

VERSION = "2.56"
DRY = {"X-Kilonova-Dry-Run": "1"}
HOST = "OS-EXT-SRV-ATTR:host"


def file(path: str, content: bytes = b"hello") -> dict[str, str]:
    return {"path": path, "contents": base64.b64encode(content).decode()}


async def boot(c: FullCloud, files: list[dict[str, str]]) -> dict[str, Any]:
    return await c.boot_active(version=VERSION, networks="none", personality=files)


async def rebuild(c: FullCloud, server: dict[str, Any], version: str = VERSION, **keys: Any) -> None:
    answer = await act(c, server["id"], "rebuild", {"imageRef": c.image_id, **keys}, version=version)
    assert answer.status == 202, answer.body
    await c.wait_until_settled(server["id"])


def files_of(c: FullCloud, server: dict[str, Any]) -> list[tuple[str, bytes]]:
    return [(found.path, found.content) for found in guest_on(c, server[HOST], server["id"]).files]


@proves("POST /servers")
def test_files_reach_the_guest(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            wrapped = {"path": "etc/ωmega", "contents": base64.encodebytes(b"x" * 200).decode()}
            server = await boot(c, [file("/etc/motd", b"\0\xff"), wrapped, file("/etc/empty", b"")])
            expected = [("/etc/motd", b"\0\xff"), ("etc/ωmega", b"x" * 200), ("/etc/empty", b"")]
            assert files_of(c, server) == expected
            assert "personality" not in await c.show(server["id"], version=VERSION)
            assert files_of(c, await boot(c, [])) == []

    run(scenario())


def test_all_servers_of_a_request_get_the_files(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            await c.boot(version=VERSION, networks="none", personality=[file("a")], min_count=2)
            servers = (await c.get("/servers/detail", as_="project-admin")).json()["servers"]
            for server in servers:
                shown = await c.wait_until_settled(server["id"])
                assert files_of(c, shown) == [("a", b"hello")]
            assert len(servers) == 2

    run(scenario())


def test_moved_guest_has_its_files(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            server = await boot(c, [file("a")])
            for action, body in (("resize", {"flavorRef": "2"}), ("shelve", None), ("unshelve", None)):
                assert (await act(c, server["id"], action, body)).status == 202
                shown = await c.wait_until_settled(server["id"])
                if action == "resize":
                    assert shown[HOST] != server[HOST]
                    assert files_of(c, shown) == [("a", b"hello")]
                    assert (await act(c, server["id"], "confirmResize")).status == 204
                    await c.wait_until_settled(server["id"])
            assert files_of(c, await c.show(server["id"])) == [("a", b"hello")]

    run(scenario())


@proves("POST /servers/{server_id}/action#rebuild")
def test_rebuilt_guest_has_the_files_of_the_rebuild_only(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server = await boot(c, [file("a"), file("b")])
            await rebuild(c, server, personality=[file("b", b"new"), file("c")])
            assert files_of(c, server) == [("b", b"new"), ("c", b"hello")]
            await rebuild(c, server)
            assert files_of(c, server) == []
            await rebuild(c, server, personality=[file("d")])
            assert files_of(c, server) == [("d", b"hello")]
            await rebuild(c, server, version="2.57")
            assert files_of(c, server) == []

    run(scenario())


REFUSED: list[tuple[list[dict[str, str]], str]] = [
    ([file(str(number)) for number in range(6)], "Personality file limit exceeded: 6 files, 5 allowed"),
    ([file("short"), file("x" * 256)], "Personality file path too long: 256 bytes, 255 allowed"),
    ([file("ω" * 128)], "Personality file path too long: 256 bytes, 255 allowed"),
    ([file("a"), file("b", b"x" * 10241)], "Personality file content too long: 10241 bytes, 10240 allowed"),
]


@pytest.mark.parametrize("files, message", REFUSED)
def test_files_over_quota_are_refused(sqlite_url: str, files: list[dict[str, str]], message: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            assert await create_refusal(c, VERSION, personality=files) == (403, message)
            server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "none", "personality": files}
            assert (await c.post("/servers", {"server": server}, version=VERSION, headers=DRY)).status == 403
            server_id = (await c.boot_active())["id"]
            body = {"imageRef": c.image_id, "personality": files}
            refused = await action_refusal(c, server_id, "rebuild", body, as_="member", version=VERSION)
            assert refused == (403, message)

    run(scenario())


def test_largest_files_and_quotas_of_projects_and_users(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            largest = [file("x" * 250 + f"{number:05}", b"x" * 10240) for number in range(5)]
            assert len(files_of(c, await boot(c, largest))) == 5
            limits = {"injected_files": -1, "injected_file_content_bytes": -1, "injected_file_path_bytes": 1}
            quota = f"/os-quota-sets/{DEMO}"
            assert (await c.put(quota, {"quota_set": limits}, as_="admin", version=VERSION)).status == 200
            assert len(files_of(c, await boot(c, [file(str(number), b"x" * 10_241) for number in range(6)]))) == 6
            assert (await create_refusal(c, VERSION, personality=[file("ab")]))[0] == 403
            of_user = f"{quota}?user_id=member-id"
            limits = {"injected_files": 0, "injected_file_path_bytes": 1}
            assert (await c.put(of_user, {"quota_set": limits}, as_="admin", version=VERSION)).status == 200
            status, message = await create_refusal(c, VERSION, personality=[file("a")])
            assert (status, message) == (403, "Personality file limit exceeded: 1 files, 0 allowed")
            assert files_of(c, await boot(c, [])) == []

    run(scenario())


def test_invalid_files_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            for bad, field in (
                ({"path": "a"}, "'contents' is a required property"),
                ({"contents": "QQ=="}, "'path' is a required property"),
                ({"path": 7, "contents": "QQ=="}, "path"),
                ({"path": "a", "contents": "no base64!"}, "contents"),
                ({"path": "a", "contents": "QQ==", "mode": "0600"}, "mode"),
            ):
                status, message = await create_refusal(c, VERSION, personality=[bad])
                assert (status, field in message) == (400, True), message
            assert (await create_refusal(c, VERSION, personality=file("a")))[0] == 400
            status, message = await create_refusal(c, "2.57", personality=[])
            assert (status, "personality" in message) == (400, True)

    run(scenario())


def test_files_and_user_data_leave_the_database_with_the_server(database_url: str) -> None:
    """Also those of rebuilds, whose operations stay in the database."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            secret = file("a", b"a secret in a file")
            server = await boot(c, [secret])
            await rebuild(c, server, version="2.57", user_data=secret["contents"])
            await rebuild(c, server, personality=[secret])
            assert secret["contents"] in str(await c.db.fetch("SELECT * FROM servers"))
            assert (await c.delete(f"/servers/{server['id']}")).status == 204
            await c.wait_until_deleted(server["id"])
            for table in ("servers", "operations", "operation_steps"):
                rows = await c.db.fetch(f"SELECT * FROM {table}")
                assert rows
                assert secret["contents"] not in str(rows), table

    run(scenario())
