"""Plans of forced moves, which copy the allocation to the named host, and why that can be impossible."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.compute.servers import forced_moves
from kilonova.compute.servers.server import Server
from kilonova.hosts.drivers.sim.shapes import Amount, Shape, Shapes
from kilonova.scheduler import Plan
from tests.compute.servers.support import make_flavor
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud

SOURCE, TARGET = "sim-001", "sim-002"


async def boot_on(c: FullCloud, host: str, hints: dict[str, Any] | None = None, **keys: Any) -> str:
    server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto", **keys}
    body: dict[str, Any] = {"server": {**server, "availability_zone": f":{host}"}}
    if hints:
        body["os:scheduler_hints"] = hints
    answer = await c.post("/servers", body, as_="project-admin", version="2.96")
    assert answer.status == 202, answer.body
    server_id: str = answer.json()["server"]["id"]
    assert (await c.wait_until_settled(server_id))["status"] == "ACTIVE"
    return server_id


async def plan_move(c: FullCloud, server_id: str, host: str = TARGET, **options: Any) -> Plan:
    row = await c.db.fetch_one("SELECT * FROM servers WHERE id = $1", server_id)
    assert row is not None
    return await forced_moves.plan(c.db, Server.decode(row), host, **options)


def rejection_of(plan: Plan) -> tuple[str, str]:
    """The reason, and what the host has."""
    assert plan.candidates == ()
    (rejection,) = plan.diagnosis.rejections
    assert plan.diagnosis.sentence().startswith("No valid host was found: 1 host: 1 ")
    return rejection.text, rejection.have


def test_forced_move_copies_a_simple_allocation(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            plan = await plan_move(c, await boot_on(c, SOURCE))
            (candidate,) = plan.candidates
            assert (candidate.host, candidate.hypervisor_hostname) == (TARGET, TARGET)
            assert candidate.allocations == {candidate.uuid: {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}}
            assert plan.diagnosis.sentence() == "1 of 1 host fits"

    run(scenario())


@pytest.mark.parametrize("policy", ["anti-affinity", "soft-anti-affinity", "affinity"])
def test_forced_move_obeys_strict_server_groups_only(database_url: str, policy: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            group = {"server_group": {"name": "g", "policy": policy}}
            made = (await c.post("/os-server-groups", group, as_="project-admin", version="2.64")).json()
            hints = {"group": made["server_group"]["id"]}
            other_host = SOURCE if policy == "affinity" else TARGET
            server_id = await boot_on(c, SOURCE, hints)
            await boot_on(c, other_host, hints)
            plan = await plan_move(c, server_id)
            if policy.startswith("soft"):
                assert len(plan.candidates) == 1
            else:
                assert rejection_of(plan)[0] == "against the policy of its server group"

    run(scenario())


@pytest.mark.parametrize(
    "amount, text, have",
    [
        (Amount(total=16384, max_unit=256), "cannot give one server 512 MB memory", "1 MB memory to 256 MB memory"),
        (Amount(total=16384, min_unit=1024), "cannot give one server 512 MB memory", "1024 MB memory to"),
        (Amount(total=16384, step_size=300), "cannot give one server 512 MB memory", "in steps of 300"),
        (Amount(total=1024, reserved=600), "lack 512 MB memory", "424 MB memory free of 424 MB memory"),
    ],
)
def test_forced_move_checks_inventory_limits(sqlite_url: str, amount: Amount, text: str, have: str) -> None:
    rest: dict[str, int | Amount] = {"VCPU": 8, "DISK_GB": 100}
    roomy = Shape(name="roomy", hosts=1, inventory={**rest, "MEMORY_MB": 16384})
    odd = Shape(name="odd", hosts=1, inventory={**rest, "MEMORY_MB": amount})

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2, shapes=Shapes(shape=[roomy, odd])) as c:
            reason, actual = rejection_of(await plan_move(c, await boot_on(c, SOURCE)))
            assert reason == text
            assert have in actual

    run(scenario())


def test_forced_move_rejects_unusable_destinations(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server_id = await boot_on(c, SOURCE)
            assert rejection_of(await plan_move(c, server_id, SOURCE))[0] == "excluded"
            assert rejection_of(await plan_move(c, server_id, tried=frozenset({TARGET})))[0] == "excluded"
            missing = await plan_move(c, server_id, "missing")
            assert (missing.candidates, missing.diagnosis.sentence()) == (
                (),
                "No valid host was found: there are no hosts",
            )
            async with c.db.transaction() as tx:
                await tx.execute("DELETE FROM consumers WHERE uuid = $1", server_id)
            assert rejection_of(await plan_move(c, server_id)) == (
                "cannot be forced: the server's allocation is complex",
                "no allocation",
            )

    run(scenario())


def test_forced_move_of_large_server_needs_an_empty_host(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            await make_flavor(c, "large", ram=15800)
            server_id = await boot_on(c, SOURCE, flavorRef="large")
            assert len((await plan_move(c, server_id)).candidates) == 1
            await boot_on(c, TARGET)
            assert rejection_of(await plan_move(c, server_id))[0] == "lack 15800 MB memory"

    run(scenario())
