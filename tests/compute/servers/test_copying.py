"""Copies of a share for moves that are forced: what can be in the way beside complex allocations."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.compute.servers import copying
from kilonova.hosts.drivers.sim.shapes import Amount, Shape, Shapes
from kilonova.scheduler import Plan
from tests.compute.servers.support import make_flavor
from tests.support import run
from tests.support.whole import Whole, whole

SOURCE, GIVEN = "sim-001", "sim-002"


async def server_on(c: Whole, host: str, hints: dict[str, Any] | None = None, **keys: Any) -> str:
    server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto", **keys}
    body: dict[str, Any] = {"server": {**server, "availability_zone": f":{host}"}}
    if hints:
        body["os:scheduler_hints"] = hints
    answer = await c.post("/servers", body, as_="project-admin", version="2.96")
    assert answer.status == 202, answer.body
    identity: str = answer.json()["server"]["id"]
    assert (await c.settled(identity))["status"] == "ACTIVE"
    return identity


async def copied(c: Whole, server_id: str, host: str = GIVEN, **options: Any) -> Plan:
    row = await c.db.fetch_one("SELECT * FROM servers WHERE id = $1", server_id)
    assert row is not None
    return await copying.plan(c.db, row, host, **options)


def refusal(plan: Plan) -> tuple[str, str]:
    """Why, and what the host has instead."""
    assert plan.candidates == ()
    (rejection,) = plan.diagnosis.rejections
    assert plan.diagnosis.sentence().startswith("No valid host was found: 1 host: 1 ")
    return rejection.text, rejection.have


def test_a_simple_share_is_copied(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            plan = await copied(c, await server_on(c, SOURCE))
            (candidate,) = plan.candidates
            assert (candidate.host, candidate.hypervisor_hostname) == (GIVEN, GIVEN)
            assert candidate.allocations == {candidate.uuid: {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}}
            assert plan.diagnosis.sentence() == "1 of 1 host fits"

    run(scenario())


@pytest.mark.parametrize("policy", ["anti-affinity", "soft-anti-affinity", "affinity"])
def test_strict_groups_rule_and_soft_ones_do_not(database_url: str, policy: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            group = {"server_group": {"name": "g", "policy": policy}}
            made = (await c.post("/os-server-groups", group, as_="project-admin", version="2.64")).json()
            hints = {"group": made["server_group"]["id"]}
            with_it = SOURCE if policy == "affinity" else GIVEN
            server_id = await server_on(c, SOURCE, hints)
            await server_on(c, with_it, hints)
            plan = await copied(c, server_id)
            if policy.startswith("soft"):
                assert len(plan.candidates) == 1
            else:
                assert refusal(plan)[0] == "against the policy of its server group"

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
def test_room_and_its_portions(sqlite_url: str, amount: Amount, text: str, have: str) -> None:
    rest: dict[str, int | Amount] = {"VCPU": 8, "DISK_GB": 100}
    roomy = Shape(name="roomy", hosts=1, inventory={**rest, "MEMORY_MB": 16384})
    odd = Shape(name="odd", hosts=1, inventory={**rest, "MEMORY_MB": amount})

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=2, shapes=Shapes(shape=[roomy, odd])) as c:
            told, there = refusal(await copied(c, await server_on(c, SOURCE)))
            assert told == text
            assert have in there

    run(scenario())


def test_who_is_no_destination(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server_id = await server_on(c, SOURCE)
            assert refusal(await copied(c, server_id, SOURCE))[0] == "excluded"
            assert refusal(await copied(c, server_id, tried=frozenset({GIVEN})))[0] == "excluded"
            gone = await copied(c, server_id, "gone")
            assert (gone.candidates, gone.diagnosis.sentence()) == ((), "No valid host was found: there are no hosts")
            async with c.db.transaction() as tx:
                await tx.execute("DELETE FROM consumers WHERE uuid = $1", server_id)
            assert refusal(await copied(c, server_id)) == (
                "cannot be forced: the server's allocation is complex",
                "no allocation",
            )

    run(scenario())


def test_more_than_half_of_a_host_has_room_where_it_is_empty(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            await make_flavor(c, "large", ram=15800)
            server_id = await server_on(c, SOURCE, flavorRef="large")
            assert len((await copied(c, server_id)).candidates) == 1
            await server_on(c, GIVEN)
            assert refusal(await copied(c, server_id))[0] == "lack 15800 MB memory"

    run(scenario())
