"""Steps "choose host" and "claim": lost races, hosts that fail to build the server, and the fault at the end."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from kilonova.compute.operations import boot
from kilonova.compute.operations.steps import choose
from kilonova.compute.server_groups import model as groups
from kilonova.hosts.transport import RefusedByHypervisor
from kilonova.ids import new_id
from kilonova.operations import Failed, GoBack, Operation
from kilonova.placement.claims import Consumer
from kilonova.scheduler import Candidate, attempts
from tests.compute.operations.steps.support import (
    USER,
    begin_leased_boot,
    fill_host,
    get_server,
    list_allocations,
)
from tests.compute.servers.support import NO_RESOURCES, act, count_server_resources, rules
from tests.compute.servers.test_scheduling import count_by_host
from tests.support import run
from tests.support.cloud import DEMO, fault, put_server
from tests.support.full_cloud import FullCloud, full_cloud


async def plan(op: Operation) -> list[str]:
    """Run "choose host". Returns the proposed hosts, best first."""
    proposal = op.results[choose.CHOOSE.name] = await boot.choose_host(op)
    return [candidate.host for candidate in proposal.candidates]


async def claim(c: FullCloud, op: Operation) -> Candidate:
    server = await get_server(c, op.server_id)
    async with c.db.transaction() as tx:
        return await choose.claim_candidate(op, tx, server, Consumer(server.id, DEMO, USER))


async def lose(c: FullCloud, op: Operation) -> GoBack:
    """Run "claim", which loses all candidates. Notes are merged as the engine does."""
    with pytest.raises(GoBack) as lost:
        await claim(c, op)
    op.note |= lost.value.note
    return lost.value


def test_claim_uses_next_candidate_if_first_is_full(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            op = await begin_leased_boot(c)
            first, second = await plan(op)
            await fill_host(c, first)
            taken = await claim(c, op)
            assert (taken.host, op.host) == (second, second)
            assert (await list_allocations(c))[str(op.server_id)] == ("INSTANCE", second)
            assert op.find_result(choose.CHOOSE) is None, "a repeated step makes a new plan"
            (attempt,) = await attempts.of_server(c.db, str(op.server_id))
            assert (attempt.host, attempt.lost, attempt.operation_id) == (second, 0, op.id)

    run(scenario())


def test_lost_race_goes_back_and_plans_with_current_hosts(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, scheduler__alternates=1) as c:
            op = await begin_leased_boot(c)
            (first,) = await plan(op)
            await fill_host(c, first)
            lost = await lose(c, op)
            assert (lost.step, lost.reason) == (
                choose.CHOOSE.name,
                "other claims or changes came first on every proposed host",
            )
            uuid = await c.db.fetch_value("SELECT uuid FROM hypervisors WHERE host = $1", first)
            assert (lost.note["lost"], lost.note["losses"]) == ([uuid], 1)
            assert str(op.server_id) not in await list_allocations(c)
            (second,) = await plan(op)
            assert second != first
            await fill_host(c, second)
            assert (await lose(c, op)).note["losses"] == 2
            with pytest.raises(Failed, match=r"^No valid host was found: 2 hosts: 2 lack 512 MB memory$"):
                await plan(op)
            (attempt,) = await attempts.of_server(c.db, str(op.server_id))
            assert (attempt.host, attempt.lost) == (None, 2)

    run(scenario())


def test_lost_race_names_server_group_policy(database_url: str) -> None:
    """Another member of the anti-affinity group comes to the only host after the plan."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            group_id, other_id = new_id(), new_id()
            hints = orjson.dumps({"group": group_id}).decode()
            op = await begin_leased_boot(c, scheduler_hints=hints)
            await put_server(c.db, other_id, scheduler_hints=hints)
            async with c.db.transaction() as tx:
                group = groups.ServerGroup(group_id, DEMO, USER, "g", "anti-affinity", None, 1.0)
                await groups.create(tx, group)
                await groups.join(tx, group_id, [str(op.server_id), other_id])
            assert await plan(op) == ["sim-001"]
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET host = 'sim-001' WHERE id = $1", other_id)
            lost = await lose(c, op)
            assert lost.reason == "the policy of its server group now excludes it on every proposed host"
            assert await list_allocations(c) == {}

    run(scenario())


def fail_build(op: Operation, host: str) -> BaseException:
    """The error that a host's refusal to build the server leads to. Notes are merged as the engine does."""
    with pytest.raises((GoBack, Failed)) as raised:
        choose.try_next_host(op, host, RefusedByHypervisor(host, f"no space in /data of {host}"))
    op.note |= getattr(raised.value, "note", {})
    return raised.value


def test_tried_hosts_are_excluded_from_next_plan(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            op = await begin_leased_boot(c)
            first, second = await plan(op)
            back = fail_build(op, first)
            assert isinstance(back, GoBack)
            assert (back.step, back.reason, back.fault) == (
                choose.CHOOSE.name,
                "refused by the hypervisor",
                f"{first}: no space in /data of {first}",
            )
            assert choose.tried_hosts(op) == {first}
            assert await plan(op) == [second]
            fail_build(op, second)
            with pytest.raises(Failed, match=r"2 excluded. Tried before: 2 refused by the hypervisor$") as failure:
                await plan(op)
            for host in (first, second):
                assert f"{host}: no space in /data of {host}" in str(failure.value.fault)

    run(scenario())


@pytest.mark.parametrize(
    ("attempts_allowed", "message"),
    [
        (1, "No valid host was found: 1 host could not build the server: 1 refused by the hypervisor"),
        (2, "No valid host was found: 2 hosts could not build the server: 2 refused by the hypervisor"),
    ],
)
def test_failed_builds_are_limited(sqlite_url: str, attempts_allowed: int, message: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1, operations__max_build_attempts=attempts_allowed) as c:
            op = await begin_leased_boot(c)
            errors = [fail_build(op, f"host-{number}") for number in range(attempts_allowed)]
            assert [type(error) for error in errors] == [GoBack] * (attempts_allowed - 1) + [Failed]
            last: Any = errors[-1]
            assert str(last) == message
            faults = [f"host-{number}: no space in /data of host-{number}" for number in range(attempts_allowed)]
            assert last.fault == "\n".join(faults)

    run(scenario())


class TestFailedBuilds:
    def test_failed_build_is_retried_on_another_host(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=3) as c:
                with rules(c) as sim:
                    for host in ("sim-001", "sim-003"):
                        sim.add_failure(host, "spawn", "error", None, "the disk is on fire")
                servers = await asyncio.gather(*(c.boot_active() for _ in range(4)))
                assert await count_by_host(c, servers) == {"sim-002": 4}
                for server in servers:
                    assert "fault" not in server
                    assert await count_server_resources(c, server["id"]) == {"allocations": 3, "ports": 1, "guests": 1}
                assert len(await c.guests()) == 4

        run(scenario())

    def test_server_that_no_host_builds_releases_its_resources(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=4) as c:
                with rules(c) as sim:
                    sim.add_failure("*", "spawn", "error", None, "the disk of sim-001 is on fire")
                server_id = (await c.boot())["id"]
                shown = await c.wait_until_settled(server_id)
                assert shown["status"] == "ERROR"
                message = "No valid host was found: 3 hosts could not build the server: 3 refused by the hypervisor"
                assert shown["fault"]["message"] == message
                assert shown["fault"]["details"].count(": the disk of sim-001 is on fire") == 3
                assert "sim-00" not in orjson.dumps(await c.show(server_id, as_="member")).decode()
                assert shown["OS-EXT-SRV-ATTR:host"] is None
                assert await count_server_resources(c, server_id) == NO_RESOURCES
                assert "details" not in (await c.show(server_id, as_="member"))["fault"]
                for action, body in (("os-stop", None), ("os-start", None), ("reboot", {"type": "HARD"})):
                    assert fault(await act(c, server_id, action, body))[:2] == (409, "conflictingRequest")

        run(scenario())

    def test_fault_counts_failed_hosts_when_none_remain(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=2) as c:
                with rules(c) as sim:
                    sim.add_failure("*", "spawn", "error", None, "the disk is on fire")
                shown = await c.wait_until_settled((await c.boot())["id"])
                assert shown["status"] == "ERROR"
                assert shown["fault"]["message"].startswith("No valid host was found: 2 hosts: 2 ")
                assert shown["fault"]["message"].endswith("Tried before: 2 refused by the hypervisor")
                assert shown["fault"]["details"].count(": the disk is on fire") == 2
                assert await count_server_resources(c, shown["id"]) == NO_RESOURCES

        run(scenario())

    def test_build_is_retried_on_a_briefly_unreachable_host(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=1) as c:
                with rules(c) as sim:
                    sim.add_failure("*", "spawn", "unreachable", 2, None)
                await c.boot_active()

        run(scenario())
