"""Storage of attempts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import orjson
from msgspec.structs import replace

from kilonova.scheduler import Request, SchedulerConfig, attempts
from kilonova.scheduler.attempts import Attempt
from kilonova.scheduler.explain import Cause, Diagnosis, FilterResult, Rejection, Weight
from kilonova.scheduler.plan import Planner
from kilonova.store import Database
from tests.scheduler.support import host, snapshot
from tests.support import run

Opener = Callable[[], AbstractAsyncContextManager[Database]]

FREE = {"VCPU": (3, 8), "MEMORY_MB": (512, 16384)}
CHOSEN = Diagnosis(
    hosts=3,
    filters=(FilterResult("compute_up", 0, 3), FilterResult("zone", 1, 2, (Cause("not in zone az1", 1),))),
    weights=(
        Weight("h1", "node1", 1.5, {"ram": 1.0, "cpu": 0.5}, FREE),
        Weight("h2", "h2", 0.25, {"ram": 0.25, "cpu": 0.0}),
    ),
    asked={"resources": {"VCPU": 1}, "zone": "az1"},
)
REFUSED = Diagnosis(
    hosts=3,
    filters=(
        FilterResult("compute_up", 1, 2, (Cause("disabled", 1),)),
        FilterResult("zone", 0, 2),
        FilterResult("capacity", 2, 0, (Cause("lack 4 VCPU", 1), Cause("lack 1 GB disk", 1))),
    ),
    rejections=(
        Rejection("h1", "node1", "u1", "compute_up", "disabled", "an enabled compute service", "disabled: broken"),
        Rejection("h2", "h2", "u2", "capacity", "lack 4 VCPU", "4 VCPU", "3 VCPU free of 8 VCPU", FREE),
        Rejection("h3", "h3", "u3", "capacity", "lack 4 VCPU", "4 VCPU", "no VCPU"),
    ),
    asked={"resources": {"VCPU": 4}},
)


async def record(db: Database, diagnosis: Diagnosis | attempts.Packed, host: str | None, lost: int = 0) -> None:
    async with db.transaction() as tx:
        await attempts.record(
            tx, server_id="s1", operation_id="op1", kind="boot", diagnosis=diagnosis, host=host, lost=lost
        )


def test_stored_attempts_are_read_back_newest_first(database: Opener) -> None:
    async def scenario() -> list[Attempt]:
        async with database() as db:
            await record(db, REFUSED, None)
            # The result of a step goes through JSON before it is recorded.
            await record(db, orjson.loads(orjson.dumps(attempts.pack(CHOSEN))), "h1", lost=2)
            assert await attempts.of_server(db, "s2") == []
            return await attempts.of_server(db, "s1")

    newest, oldest = run(scenario())
    assert newest.diagnosis == CHOSEN
    assert (newest.host, newest.lost, newest.kind, newest.operation_id) == ("h1", 2, "boot", "op1")
    assert oldest.diagnosis == REFUSED
    assert (oldest.host, oldest.lost) == (None, 0)
    assert oldest.diagnosis.sentence() == REFUSED.sentence()


def test_successful_attempt_is_stored_in_little_space() -> None:
    weights = tuple(
        Weight(f"compute-{n:05}", f"compute-{n:05}", 2.123456 - n, {"ram": 1 / 3, "cpu": 1 / 7, "disk": 1.0}, FREE)
        for n in range(50)
    )
    names = [f"some_filter_{n}" for n in range(15)]
    filters = (*(FilterResult(name, 0, 9999) for name in names), FilterResult("zone", 9, 9990, (Cause("x", 9),)))
    text = orjson.dumps(attempts.pack(Diagnosis(9999, filters, weights=weights, asked=CHOSEN.asked)))
    assert len(text) < 1500


def test_attempt_is_rolled_back_with_its_transaction(database: Opener) -> None:
    async def scenario() -> list[Attempt]:
        async with database() as db:
            try:
                async with db.transaction() as tx:
                    await attempts.record(
                        tx, server_id="s1", operation_id="op1", kind="boot", diagnosis=CHOSEN, host="h1"
                    )
                    raise RuntimeError
            except RuntimeError:
                return await attempts.of_server(db, "s1")

    assert run(scenario()) == []


def test_failed_plan_lists_the_projects_own_hosts_first() -> None:
    hosts = snapshot(*(host(n, aggregates=frozenset({7} if n > 18 else ())) for n in range(1, 21)))
    hosts.aggregates.set_metadata(1, {7: {"filter_tenant_id": "p1"}})
    planner = Planner(SchedulerConfig(max_listed_hosts=3, filters=("capacity",)))
    request = Request(resources={"VCPU": 9}, project_id="p1")
    assert [one.host for one in planner.plan(request, hosts).diagnosis.rejections] == ["h19", "h20", "h1"]
    others = replace(request, project_id="p2")
    assert [one.host for one in planner.plan(others, hosts).diagnosis.rejections] == ["h1", "h2", "h3"]


def test_diagnosis_has_request_and_free_amounts() -> None:
    hosts = snapshot(host(1, used={"VCPU": 3}), host(2, used={"VCPU": 8}))
    planner = Planner(SchedulerConfig())
    found = planner.plan(Request(resources={"VCPU": 1, "DISK_GB": 0}, zone="nova"), hosts).diagnosis
    assert found.asked == {"resources": {"VCPU": 1}, "zone": "nova"}
    assert [(one.host, one.free) for one in found.weights] == [("h1", {"VCPU": (5, 8)})]
    refused = planner.plan(Request(resources={"VCPU": 6}), hosts).diagnosis
    assert [(one.host, one.free["VCPU"]) for one in refused.rejections] == [("h1", (5, 8)), ("h2", (0, 8))]
    assert refused.rejection_report() == (
        "h1: lacks 6 VCPU: 5 VCPU free of 8 VCPU\nh2: lacks 6 VCPU: 0 VCPU free of 8 VCPU"
    )


def test_repeated_refusal_replaces_the_stored_one(database: Opener) -> None:
    async def scenario() -> None:
        async with database() as db:
            await record(db, CHOSEN, "h1")
            await record(db, REFUSED, None)
            await record(db, replace(REFUSED, hosts=4), None)
            found = await attempts.of_server(db, "s1")
            assert [(one.host, one.diagnosis.hosts) for one in found] == [(None, 4), ("h1", 3)]
            async with db.transaction() as tx:
                await attempts.delete_refusal(tx, "s1", "op2")
                assert len(await attempts.of_server(tx, "s1")) == 2
                await attempts.delete_refusal(tx, "s1", "op1")
            assert [one.host for one in await attempts.of_server(db, "s1")] == ["h1"]

    run(scenario())
