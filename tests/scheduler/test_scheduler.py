"""From a request to a claim: boots side by side spread out, losers propose again, a refusal is true and says why."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter

import pytest
from msgspec.structs import replace

from kilonova.placement import Consumer, HoldsOther, claim, hosts_changed, release, usages
from kilonova.scheduler import Candidate, Request, Scheduler, SchedulerConfig, claim_first
from tests.placement.support import everything
from tests.scheduler.support import TINY, NoValidHost, add_hosts, described, place, rehearsed, set_disabled, shaped
from tests.support import run
from tests.support.databases import opened

BOOT = Request(resources=TINY)
# What is proposed stays so for longer than any test takes, however slow the machine.
FORESEEN = SchedulerConfig(foresight=600.0)


def server(number: int) -> Consumer:
    return Consumer(f"server-{number}", "project", "user")


def test_boots_side_by_side_go_to_different_hosts(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, *(described(f"h{n}") for n in range(16)))
            scheduler = Scheduler(db, FORESEEN)
            plans = [await scheduler.plan(BOOT) for _ in range(16)]  # nobody has claimed yet
            assert len({plan.candidates[0].host for plan in plans}) == 16

    run(scenario())


def test_places_spread_evenly(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, *(described(f"h{n}") for n in range(8)))
            scheduler = Scheduler(db, FORESEEN)
            taken = await asyncio.gather(*(place(scheduler, db, BOOT, server(n)) for n in range(32)))
            assert set(Counter(candidate.host for candidate in taken).values()) == {4}

    run(scenario())


def test_the_last_place_is_found_and_then_the_refusal_says_why(database):
    async def scenario():
        async with database() as db:
            uuids = await add_hosts(db, described("h1", vcpus=2), described("h2", vcpus=3), described("h3"))
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
            used = await usages(db, list(uuids.values()))
            assert [used[uuids[name]]["VCPU"] for name in ("h1", "h2", "h3")] == [2, 3, 0]

    run(scenario())


def test_several_schedulers_fill_the_hosts_exactly(database_url):
    """Each has its own snapshot and learns of the others' claims by the change sequence alone."""

    async def scenario():
        async with opened(database_url) as one, opened(database_url) as other:
            uuids = await add_hosts(one, *(described(f"h{n}", vcpus=10) for n in range(4)))
            schedulers = [Scheduler(one), Scheduler(other)]
            pairs = list(zip(schedulers, (one, other), strict=True))
            outcomes = await asyncio.gather(
                *(place(*pairs[n % 2], BOOT, server(n)) for n in range(60)), return_exceptions=True
            )
            assert sum(isinstance(outcome, Candidate) for outcome in outcomes) == 40
            assert sum(isinstance(outcome, NoValidHost) for outcome in outcomes) == 20
            used = await usages(one, list(uuids.values()))
            assert {amounts["VCPU"] for amounts in used.values()} == {10}

    run(scenario())


def test_room_given_back_is_seen_before_anyone_is_refused(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, described("h1", vcpus=1))
            scheduler = Scheduler(db, SchedulerConfig(refresh_every=1000))
            await place(scheduler, db, BOOT, server(1))
            async with db.transaction() as tx:
                await release(tx, server(1).uuid)
            assert (await place(scheduler, db, BOOT, server(2))).host == "h1"

    run(scenario())


def test_a_proposal_alone_refuses_nobody(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, described("h1", vcpus=1))
            scheduler = Scheduler(db)
            assert (await scheduler.plan(BOOT)).candidates
            assert (await scheduler.plan(BOOT)).candidates

    run(scenario())


def test_a_dry_plan_is_the_same_plan_and_leaves_no_trace(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, described("h1", vcpus=4), described("h2", vcpus=2))
            scheduler = Scheduler(db, SchedulerConfig(jitter=0.0))
            before = await everything(db)
            dry = [await rehearsed(scheduler, BOOT) for _ in range(3)]
            assert dry[0] == dry[1] == dry[2] == await scheduler.plan(BOOT)
            assert await everything(db) == before

    run(scenario())


def test_what_the_claim_is_for_shares_its_transaction(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, described("h1"))
            scheduler = Scheduler(db)
            before = await everything(db)

            plan = await scheduler.plan(BOOT)
            with pytest.raises(RuntimeError, match="row"):
                async with db.transaction() as tx:
                    taken = await claim_first(tx, plan.candidates, server(1))
                    assert [taken] == [plan.candidates[0]]
                    raise RuntimeError("the server's row cannot be written")
            assert await everything(db) == before

    run(scenario())


# The transaction step


async def hosts_with_room(db, **vcpus: int) -> list[Candidate]:
    uuids = await add_hosts(db, *(described(name, vcpus=number) for name, number in vcpus.items()))
    return [Candidate(uuids[name], name, name, {uuids[name]: {"VCPU": 2}}) for name in vcpus]


def asking(candidates: list[Candidate], vcpus: int) -> list[Candidate]:
    return [replace(candidate, allocations={candidate.uuid: {"VCPU": vcpus}}) for candidate in candidates]


def test_the_first_candidate_with_room_is_taken(database):
    async def scenario():
        async with database() as db:
            candidates = await hosts_with_room(db, a=1, b=4, c=4)
            async with db.transaction() as tx:
                taken = await claim_first(tx, candidates, server(1))
            assert taken == candidates[1]
            before = await everything(db)
            async with db.transaction() as tx:
                assert await claim_first(tx, asking(candidates, 5), server(2)) is None
                assert await claim_first(tx, [], server(2)) is None
            assert await everything(db) == before

    run(scenario())


def test_a_repeated_step_gets_what_it_already_holds(database):
    async def scenario():
        async with database() as db:
            candidates = await hosts_with_room(db, a=4, b=4)
            async with db.transaction() as tx:
                assert await claim(tx, server(1), candidates[1].allocations)
            before = await everything(db)
            async with db.transaction() as tx:
                assert await claim_first(tx, candidates, server(1)) == candidates[1]
            with pytest.raises(HoldsOther):
                async with db.transaction() as tx:
                    await claim_first(tx, candidates[:1], server(1))
            assert await everything(db) == before

    run(scenario())


@pytest.mark.parametrize("children", [False, True])
def test_a_host_that_changed_since_the_plan_is_not_entered(database, children):
    """It may be in another zone by now, or disabled: the plan is made again with what is true."""

    async def scenario():
        async with database() as db:
            await add_hosts(db, shaped("h1", 4, 4) if children else described("h1"))
            scheduler = Scheduler(db)
            asked = Request(resources={"VCPU": 1})
            plan = await scheduler.plan(asked)
            async with db.transaction() as tx:
                await hosts_changed(tx, ["h1"])
            async with db.transaction() as tx:
                assert await claim_first(tx, plan.candidates, server(1)) is None
            again = await scheduler.plan(asked, lost=plan.uuids)
            async with db.transaction() as tx:
                assert (await claim_first(tx, again.candidates, server(1))).host == "h1"
            async with db.transaction() as tx:
                await hosts_changed(tx, ["h1"])
                # What is held stays held, however often the step is repeated.
                assert (await claim_first(tx, again.candidates, server(1))).host == "h1"

    run(scenario())


def test_what_the_transaction_does_not_accept_is_passed_over(database):
    async def scenario():
        async with database() as db:
            candidates = await hosts_with_room(db, a=4, b=4)
            async with db.transaction() as tx:
                assert (
                    await claim_first(tx, candidates, server(1), accepts=lambda one: one.host == "b") == candidates[1]
                )
                assert await claim_first(tx, candidates, server(2), accepts=lambda one: False) is None
                assert (
                    await claim_first(tx, candidates, server(1), accepts=lambda one: one.host == "a") == candidates[1]
                )

    run(scenario())


def test_the_best_host_is_waited_for_and_a_busy_alternate_passed_over(postgresql_url):
    async def scenario():
        async with opened(postgresql_url) as db:
            full, busy, idle = await hosts_with_room(db, full=1, busy=4, idle=4)

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


def test_the_loser_of_all_candidates_proposes_again(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, described("h1", vcpus=1), described("h2", vcpus=1))
            scheduler = Scheduler(db, SchedulerConfig(alternates=1, jitter=0.0, refresh_every=1000))
            plan = await scheduler.plan(BOOT)
            async with db.transaction() as tx:
                assert await claim(tx, server(1), {plan.candidates[0].uuid: {"VCPU": 1}})
            async with db.transaction() as tx:
                assert await claim_first(tx, plan.candidates, server(2)) is None
            again = await scheduler.plan(BOOT, lost=plan.uuids)
            assert {plan.candidates[0].host, again.candidates[0].host} == {"h1", "h2"}

    run(scenario())


def test_a_full_host_is_not_entered_twice_until_its_room_changes(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, described("h1", vcpus=1))
            scheduler = Scheduler(db, SchedulerConfig(refresh_every=1000))
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


def test_a_host_wrongly_believed_free_is_not_proposed_for_ever(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            uuids = await add_hosts(db, described("h1", vcpus=1))
            scheduler = Scheduler(db)
            await scheduler.warm()
            async with db.transaction() as tx:  # a change that does not show in the sequence
                await tx.execute("DELETE FROM resource_providers WHERE uuid = $1", uuids["h1"])
            with pytest.raises(NoValidHost, match="there are no hosts"):
                await place(scheduler, db, BOOT, server(1))

    run(scenario())


def test_the_full_reload_runs_behind_the_plans(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, described("h1"))
            scheduler = Scheduler(db, SchedulerConfig(reload_every=0.0, refresh_every=0.0, overlap=0.0))
            await scheduler.warm()
            async with db.transaction() as tx:
                await tx.execute("DELETE FROM hypervisors")
            async with asyncio.timeout(60):
                while (await rehearsed(scheduler, BOOT)).candidates:
                    await asyncio.sleep(0.01)
            await scheduler.close()

    run(scenario())


def test_the_package_does_not_load_numpy():
    code = "import sys, kilonova.scheduler; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
