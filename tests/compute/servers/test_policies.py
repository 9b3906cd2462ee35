"""Permissions of each role on the routes of servers, and overrides by a policy file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kilonova.policy import Policy
from tests.compute.servers.support import act, create_refusal
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import FullCloud, full_cloud

READERS = {"reader", "member", "manager", "project-admin", "admin", "system"}
WRITERS = READERS - {"reader"}
ALL_CALLERS = [*sorted(READERS), "other", "service", None]


def expected(caller: str | None, success: int) -> int:
    """The status of a route of one server that the role reader may not use."""
    if caller is None:
        return 401
    return success if caller in WRITERS else 403 if caller in READERS else 404


async def read_tables(c: FullCloud) -> list[Any]:
    return [
        await c.db.fetch("SELECT id, name, vm_state, updated_at FROM servers ORDER BY id"),
        await c.db.fetch_value("SELECT COUNT(*) FROM operations"),
    ]


def test_read_permissions_by_role(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            for caller in ALL_CALLERS:
                shown = 401 if caller is None else 200 if caller in READERS else 404
                assert (await c.get(f"/servers/{server_id}", as_=caller)).status == shown, caller
                lists = 401 if caller is None else 403 if caller == "service" else 200
                all_tenants = {401: 401}.get(lists, 200 if caller in ("admin", "system", "project-admin") else 403)
                for path in ("/servers", "/servers/detail"):
                    answer = await c.get(path, as_=caller)
                    assert answer.status == lists, caller
                    if lists == 200:
                        mine = caller in READERS - {"admin", "system"}
                        assert [server["id"] for server in answer.json()["servers"]] == [server_id] * mine, caller
                    assert (await c.get(f"{path}?all_tenants=1", as_=caller)).status == all_tenants, caller

    run(scenario())


def test_change_permissions_by_role(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            path = f"/servers/{server_id}"
            for caller in ALL_CALLERS:
                requests = [
                    (c.put(path, {"server": {"name": f"by {caller}"}}, as_=caller), 200),
                    (act(c, server_id, "os-stop", as_=caller), 202),
                    (act(c, server_id, "os-start", as_=caller), 202),
                    (act(c, server_id, "reboot", {"type": "SOFT"}, as_=caller), 202),
                    (act(c, server_id, "reboot", {"type": "HARD"}, as_=caller), 202),
                ]
                for request, success in requests:
                    before = await read_tables(c)
                    answer = await request
                    assert answer.status == expected(caller, success), (caller, answer.body)
                    if answer.status >= 400:
                        assert await read_tables(c) == before, caller
                    else:
                        await c.wait_until_settled(server_id)
                if expected(caller, 204) == 204:
                    made = (await c.boot(networks="none"))["id"]
                    assert (await c.delete(f"/servers/{made}", as_=caller)).status == 204
                    await c.wait_until_deleted(made)
                else:
                    before = await read_tables(c)
                    assert (await c.delete(path, as_=caller)).status == expected(caller, 204), caller
                    assert await read_tables(c) == before

    run(scenario())


def test_create_permissions_by_role(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            for caller in ("member", "manager", "project-admin", "admin", "other"):
                shown = await c.wait_until_settled((await c.boot(as_=caller, networks="none"))["id"])
                assert shown["status"] == "ACTIVE", caller
            for caller in ("reader", "service", "system"):
                assert (await create_refusal(c, as_=caller))[0] == 403, caller

    run(scenario())


def test_policy_file_overrides_defaults(database_url: str, tmp_path: Path) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_text(
        '"os_compute_api:servers:create:attach_network": "role:manager"\n'
        '"os_compute_api:servers:stop": "role:manager"\n'
        '"os_compute_api:os-extended-server-attributes": "role:reader"\n'
        '"os_compute_api:servers:allow_all_filters": "role:member"\n'
        '"os_compute_api:servers:create:forced_host": "role:member"\n'
    )

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            c.services.policy = Policy(rules)
            nics = [{"uuid": c.network_id}]
            assert (await create_refusal(c, networks=nics))[0] == 403
            server_id = (await c.wait_until_settled((await c.boot(availability_zone="nova:sim-002"))["id"]))["id"]
            await c.wait_until_settled(
                (await c.boot(as_="manager", networks=nics, availability_zone="nova:sim-001"))["id"]
            )
            assert (await c.show(server_id, as_="reader"))["OS-EXT-SRV-ATTR:host"] == "sim-002"
            status, _, message = fault(await act(c, server_id, "os-stop"))
            assert (status, message) == (
                403,
                "Policy doesn't allow os_compute_api:servers:stop to be performed.",
            )
            assert (await act(c, server_id, "os-stop", as_="manager")).status == 202
            found = (await c.get("/servers?host=sim-002")).json()["servers"]
            assert [server["id"] for server in found] == [server_id]
            assert len((await c.get("/servers?host=sim-002", as_="reader")).json()["servers"]) == 2

    run(scenario())
