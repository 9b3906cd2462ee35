"""Who may do what with servers, for every role and every route; and that operators' rules are heeded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kilonova.policy import Policy
from tests.compute.servers.support import act, refused
from tests.support import run
from tests.support.cloud import fault
from tests.support.whole import Whole, whole

NOBODY = "11111111-1111-1111-1111-111111111111"
SEES = {"reader", "member", "manager", "project-admin", "admin", "system"}
CHANGES = SEES - {"reader"}
EVERYBODY = [*sorted(SEES), "other", "service", None]


def expected(who: str | None, success: int) -> int:
    """For routes of one server that readers may not use."""
    if who is None:
        return 401
    return success if who in CHANGES else 403 if who in SEES else 404


async def rows(c: Whole) -> list[Any]:
    return [
        await c.db.fetch("SELECT id, name, vm_state, updated_at FROM servers ORDER BY id"),
        await c.db.fetch_value("SELECT COUNT(*) FROM operations"),
    ]


def test_reading(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            for who in EVERYBODY:
                shown = 401 if who is None else 200 if who in SEES else 404
                assert (await c.get(f"/servers/{server_id}", as_=who)).status == shown, who
                lists = 401 if who is None else 403 if who == "service" else 200
                everything = {401: 401}.get(lists, 200 if who in ("admin", "system", "project-admin") else 403)
                for path in ("/servers", "/servers/detail"):
                    answer = await c.get(path, as_=who)
                    assert answer.status == lists, who
                    if lists == 200:
                        mine = who in SEES - {"admin", "system"}
                        assert [server["id"] for server in answer.json()["servers"]] == [server_id] * mine, who
                    assert (await c.get(f"{path}?all_tenants=1", as_=who)).status == everything, who

    run(scenario())


def test_changing(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            path = f"/servers/{server_id}"
            for who in EVERYBODY:
                requests = [
                    (c.put(path, {"server": {"name": f"by {who}"}}, as_=who), 200),
                    (act(c, server_id, "os-stop", as_=who), 202),
                    (act(c, server_id, "os-start", as_=who), 202),
                    (act(c, server_id, "reboot", {"type": "SOFT"}, as_=who), 202),
                    (act(c, server_id, "reboot", {"type": "HARD"}, as_=who), 202),
                ]
                for request, success in requests:
                    before = await rows(c)
                    answer = await request
                    assert answer.status == expected(who, success), (who, answer.body)
                    if answer.status >= 400:
                        assert await rows(c) == before, who
                    else:
                        await c.settled(server_id)
                if expected(who, 204) == 204:
                    made = (await c.boot(networks="none"))["id"]
                    assert (await c.delete(f"/servers/{made}", as_=who)).status == 204
                    await c.gone(made)
                else:
                    before = await rows(c)
                    assert (await c.delete(path, as_=who)).status == expected(who, 204), who
                    assert await rows(c) == before

    run(scenario())


def test_creating(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            for who in ("member", "manager", "project-admin", "admin", "other"):
                shown = await c.settled((await c.boot(as_=who, networks="none"))["id"])
                assert shown["status"] == "ACTIVE", who
            for who in ("reader", "service", "system"):
                assert (await refused(c, as_=who))[0] == 403, who

    run(scenario())


def test_operators_rules_are_heeded(database_url: str, tmp_path: Path) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_text(
        '"os_compute_api:servers:create:attach_network": "role:manager"\n'
        '"os_compute_api:servers:stop": "role:manager"\n'
        '"os_compute_api:os-extended-server-attributes": "role:reader"\n'
        '"os_compute_api:servers:allow_all_filters": "role:member"\n'
        '"os_compute_api:servers:create:forced_host": "role:member"\n'
    )

    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            c.services.policy = Policy(rules)
            nics = [{"uuid": c.network_id}]
            assert (await refused(c, networks=nics))[0] == 403
            server_id = (await c.settled((await c.boot(availability_zone="nova:sim-002"))["id"]))["id"]
            await c.settled((await c.boot(as_="manager", networks=nics, availability_zone="nova:sim-001"))["id"])
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
