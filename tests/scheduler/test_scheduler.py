"""The scheduler with a database: concurrent plans, lost claims, refreshes and failed plans."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter

import pytest
from msgspec.structs import replace

from kilonova.placement import Consumer, ConsumerHasAllocations, claim, get_usages, mark_hosts_changed, release
from kilonova.scheduler import Candidate, Request, Scheduler, SchedulerConfig, claim_first
from tests.placement.support import all_rows
from tests.scheduler.support import (
    TINY,
    NoValidHost,
    add_hosts,
    dry_run,
    host_facts,
    nested_host_facts,
    place,
    set_disabled,
)
from tests.support import run
from tests.support.databases import opened

BOOT = Request(resources=TINY)
# Proposals do not expire during a test.
KEEP_PROPOSALS = SchedulerConfig(proposal_seconds=600.0)


def server(number: int) -> Consumer:
    return Consumer(f"server-{number}", "project", "user")


def test_concurrent_plans_propose_different_hosts(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, *(host_facts(f"h{n}") for n in range(16)))
            scheduler = Scheduler(db, KEEP_PROPOSALS)
            plans = [await scheduler.plan(BOOT) for _ in range(16)]  # without claims
            assert len({plan.candidates[0].host for plan in plans}) == 16

    run(scenario())


def test_concurrent_boots_are_spread_evenly(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, *(host_facts(f"h{n}") for n in range(8)))
            scheduler = Scheduler(db, KEEP_PROPOSALS)
            taken = await asyncio.gather(*(place(scheduler, db, BOOT, server(n)) for n in range(32)))
            assert set(Counter(candidate.host for candidate in taken).values()) == {4}

    run(scenario())


def test_hosts_are_filled_completely_before_no_valid_host(database):
    async def scenario():
        async with database() as db:
            uuids = await add_hosts(db, host_facts("h1", vcpus=2), host_facts("h2", vcpus=3), host_facts("h3"))
            await set_disabled(db, "h3")
            scheduler = Scheduler(db)
            outcomes = await asyncio.gather(
                *(place(scheduler, db, BOOT, server(n)) for n in range(8)), return_exceptions=True
            )
            refusals = [outcome for outcome in outcomes if not isinstance(outcome, Candidate)]
            assert [str(refusal) for refusal in refusals] == [
                "No valid host was found: 3 hosts: 2 lack 1 VCPU, 1 disabled"
            ] * 3
            assert all(isinstance(refusal, NoValidHost) for refusal in refusals)
            used = await get_usages(db, list(uuids.values()))
            assert [used[uuids[name]]["VCPU"] for name in ("h1", "h2", "h3")] == [2, 3, 0]

    run(scenario())


def test_several_schedulers_fill_hosts_exactly(database_url):
    """Each scheduler has its own snapshot and reads the others' claims by the change sequence."""

    async def scenario():
        async with opened(database_url) as one, opened(database_url) as other:
            uuids = await add_hosts(one, *(host_facts(f"h{n}", vcpus=10) for n in range(4)))
            schedulers = [Scheduler(one), Scheduler(other)]
            pairs = list(zip(schedulers, (one, other), strict=True))
            outcomes = await asyncio.gather(
                *(place(*pairs[n % 2], BOOT, server(n)) for n in range(60)), return_exceptions=True
            )
            assert sum(isinstance(outcome, Candidate) for outcome in outcomes) == 40
            assert sum(isinstance(outcome, NoValidHost) for outcome in outcomes) == 20
            used = await get_usages(one, list(uuids.values()))
            assert {amounts["VCPU"] for amounts in used.values()} == {10}

    run(scenario())


def test_released_resources_are_seen_before_no_valid_host(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, host_facts("h1", vcpus=1))
            scheduler = Scheduler(db, SchedulerConfig(refresh_seconds=1000))
            await place(scheduler, db, BOOT, server(1))
            async with db.transaction() as tx:
                await release(tx, server(1).uuid)
            assert (await place(scheduler, db, BOOT, server(2))).host == "h1"

    run(scenario())


def test_unclaimed_proposal_does_not_cause_no_valid_host(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, host_facts("h1", vcpus=1))
            scheduler = Scheduler(db)
            assert (await scheduler.plan(BOOT)).candidates
            assert (await scheduler.plan(BOOT)).candidates

    run(scenario())


def test_dry_run_equals_plan_and_changes_nothing(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, host_facts("h1", vcpus=4), host_facts("h2", vcpus=2))
            scheduler = Scheduler(db, SchedulerConfig(jitter=0.0))
            before = await all_rows(db)
            dry = [await dry_run(scheduler, BOOT) for _ in range(3)]
            assert dry[0] == dry[1] == dry[2] == await scheduler.plan(BOOT)
            assert await all_rows(db) == before

    run(scenario())


def test_claim_is_rolled_back_with_its_transaction(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, host_facts("h1"))
            scheduler = Scheduler(db)
            before = await all_rows(db)

            plan = await scheduler.plan(BOOT)
            with pytest.raises(RuntimeError, match="row"):
                async with db.transaction() as tx:
                    taken = await claim_first(tx, plan.candidates, server(1))
                    assert [taken] == [plan.candidates[0]]
                    raise RuntimeError("the server's row cannot be written")
            assert await all_rows(db) == before

    run(scenario())


# claim_first


async def add_candidates(db, **vcpus: int) -> list[Candidate]:
    uuids = await add_hosts(db, *(host_facts(name, vcpus=number) for name, number in vcpus.items()))
    return [Candidate(uuids[name], name, name, {uuids[name]: {"VCPU": 2}}) for name in vcpus]


def with_vcpus(candidates: list[Candidate], vcpus: int) -> list[Candidate]:
    return [replace(candidate, allocations={candidate.uuid: {"VCPU": vcpus}}) for candidate in candidates]


def test_claim_first_takes_first_candidate_with_capacity(database):
    async def scenario():
        async with database() as db:
            candidates = await add_candidates(db, a=1, b=4, c=4)
            async with db.transaction() as tx:
                taken = await claim_first(tx, candidates, server(1))
            assert taken == candidates[1]
            before = await all_rows(db)
            async with db.transaction() as tx:
                assert await claim_first(tx, with_vcpus(candidates, 5), server(2)) is None
                assert await claim_first(tx, [], server(2)) is None
            assert await all_rows(db) == before

    run(scenario())


def test_repeated_claim_first_returns_held_candidate(database):
    async def scenario():
        async with database() as db:
            candidates = await add_candidates(db, a=4, b=4)
            async with db.transaction() as tx:
                assert await claim(tx, server(1), candidates[1].allocations)
            before = await all_rows(db)
            async with db.transaction() as tx:
                assert await claim_first(tx, candidates, server(1)) == candidates[1]
            with pytest.raises(ConsumerHasAllocations):
                async with db.transaction() as tx:
                    await claim_first(tx, candidates[:1], server(1))
            assert await all_rows(db) == before

    run(scenario())


@pytest.mark.parametrize("children", [False, True])
def test_claim_first_rejects_host_changed_since_the_plan(database, children):
    """The host may be disabled or in another zone now, so the plan must be made again."""

    async def scenario():
        async with database() as db:
            await add_hosts(db, nested_host_facts("h1", 4, 4) if children else host_facts("h1"))
            scheduler = Scheduler(db)
            requested = Request(resources={"VCPU": 1})
            plan = await scheduler.plan(requested)
            async with db.transaction() as tx:
                await mark_hosts_changed(tx, ["h1"])
            async with db.transaction() as tx:
                assert await claim_first(tx, plan.candidates, server(1)) is None
            again = await scheduler.plan(requested, lost=plan.uuids)
            async with db.transaction() as tx:
                assert (await claim_first(tx, again.candidates, server(1))).host == "h1"
            async with db.transaction() as tx:
                await mark_hosts_changed(tx, ["h1"])
                # A repeated claim returns the held candidate, also after a change of the host.
                assert (await claim_first(tx, again.candidates, server(1))).host == "h1"

    run(scenario())


def test_claim_first_skips_candidates_that_are_not_accepted(database):
    async def scenario():
        async with database() as db:
            candidates = await add_candidates(db, a=4, b=4)
            async with db.transaction() as tx:
                assert (
                    await claim_first(tx, candidates, server(1), accepts=lambda one: one.host == "b") == candidates[1]
                )
                assert await claim_first(tx, candidates, server(2), accepts=lambda one: False) is None
                assert (
                    await claim_first(tx, candidates, server(1), accepts=lambda one: one.host == "a") == candidates[1]
                )

    run(scenario())


def test_claim_first_waits_for_best_host_and_skips_locked_alternate(postgresql_url):
    async def scenario():
        async with opened(postgresql_url) as db:
            full, busy, idle = await add_candidates(db, full=1, busy=4, idle=4)

            async def take(number: int, candidates: list[Candidate]) -> Candidate | None:
                async with db.transaction() as tx:
                    return await claim_first(tx, candidates, server(number))

            async with db.transaction() as tx:
                assert await claim(tx, server(1), {busy.uuid: {"VCPU": 1}})
                assert await asyncio.create_task(take(2, [full, busy, idle])) == idle
                waiting = asyncio.create_task(take(3, [busy, idle]))
                await asyncio.wait([waiting], timeout=0.1)
                assert not waiting.done()
            assert await waiting == busy

    run(scenario())


def test_plan_after_lost_candidates_proposes_others(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, host_facts("h1", vcpus=1), host_facts("h2", vcpus=1))
            scheduler = Scheduler(db, SchedulerConfig(alternates=1, jitter=0.0, refresh_seconds=1000))
            plan = await scheduler.plan(BOOT)
            async with db.transaction() as tx:
                assert await claim(tx, server(1), {plan.candidates[0].uuid: {"VCPU": 1}})
            async with db.transaction() as tx:
                assert await claim_first(tx, plan.candidates, server(2)) is None
            again = await scheduler.plan(BOOT, lost=plan.uuids)
            assert {plan.candidates[0].host, again.candidates[0].host} == {"h1", "h2"}

    run(scenario())


def test_lost_host_is_proposed_again_only_after_release(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, host_facts("h1", vcpus=1))
            scheduler = Scheduler(db, SchedulerConfig(refresh_seconds=1000))
            plan = await scheduler.plan(BOOT)
            async with db.transaction() as tx:
                assert await claim(tx, server(1), plan.candidates[0].allocations)
            async with db.transaction() as tx:
                assert await claim_first(tx, plan.candidates, server(2)) is None
            again = await scheduler.plan(BOOT, lost=plan.uuids)
            assert again.diagnosis.sentence() == "No valid host was found: 1 host: 1 lacks 1 VCPU"
            async with db.transaction() as tx:
                await release(tx, server(1).uuid)
            assert (await scheduler.plan(BOOT, lost=plan.uuids)).uuids == plan.uuids

    run(scenario())


def test_removed_host_missing_from_the_sequence_is_read_again_after_lost_claim(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            uuids = await add_hosts(db, host_facts("h1", vcpus=1))
            scheduler = Scheduler(db)
            await scheduler.warm()
            async with db.transaction() as tx:  # without a number in the change sequence
                await tx.execute("DELETE FROM resource_providers WHERE uuid = $1", uuids["h1"])
            with pytest.raises(NoValidHost, match="there are no hosts"):
                await place(scheduler, db, BOOT, server(1))

    run(scenario())


def test_full_reload_runs_in_background(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, host_facts("h1"))
            scheduler = Scheduler(
                db, SchedulerConfig(reload_seconds=0.0, refresh_seconds=0.0, change_overlap_seconds=0.0)
            )
            await scheduler.warm()
            async with db.transaction() as tx:
                await tx.execute("DELETE FROM hypervisors")
            async with asyncio.timeout(60):
                while (await dry_run(scheduler, BOOT)).candidates:
                    await asyncio.sleep(0.01)
            await scheduler.close()

    run(scenario())


def test_importing_the_package_does_not_import_numpy():
    code = "import sys, kilonova.scheduler; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
