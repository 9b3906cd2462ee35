"""The finder, with its SQL conditions, finds what the brute-force oracle finds."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from kilonova.placement.candidates import finder, provider_trees
from kilonova.placement.candidates.finder import find_candidates, identity_key
from kilonova.placement.candidates.model import (
    AllocationRequest,
    InventoryUsage,
    Provider,
    RequestGroup,
    ResourceRequest,
)
from tests.support.databases import opened

from .oracle import SHARES, all_allocation_requests
from .support import insert_providers, provider, uuid_of

CLASSES = ("VCPU", "VGPU", "DISK_GB")
TRAITS = ("CUSTOM_FAST", "CUSTOM_SAFE", "CUSTOM_NEW")
AGGREGATES = ("a", "b", "c")


def random_trees(rng: random.Random, trees: int) -> list[list[Provider]]:
    return [_random_tree(rng, number) for number in range(trees)]


def _random_tree(rng: random.Random, number: int) -> list[Provider]:
    tree: list[Provider] = []
    for index in range(rng.choice((1, 1, 2, 4))):
        traits = [trait for trait in TRAITS if rng.random() < 0.3]
        if rng.random() < 0.15:
            traits.append(SHARES)
        stocks = {
            name: InventoryUsage(rng.choice((1, 2, 2.5, 4)), rng.choice((0, 0, 1)), 1, rng.choice((2, 8)))
            for name in CLASSES
            if rng.random() < 0.6
        }
        aggregates = " ".join(name for name in AGGREGATES if rng.random() < 0.2)
        parent = rng.choice(tree) if tree else None
        tree.append(provider(f"{number}-{index}", parent, traits=" ".join(traits), aggregates=aggregates, **stocks))
    return tree


def random_request(rng: random.Random, uuids: list[str]) -> ResourceRequest:
    numbered = [f"_{number}" for number in range(rng.choice((0, 0, 1, 2, 3)))]
    groups = {suffix: _random_group(rng, uuids, 0 if len(numbered) > 1 else 1) for suffix in numbered}
    together: tuple[frozenset[str], ...] = ()
    if len(numbered) > 1 and rng.random() < 0.5:
        together = (frozenset(rng.sample(numbered, 2)),)
    if not any(group.resources for group in groups.values()) or rng.random() < 0.5:
        groups[""] = _random_group(rng, uuids, 1)
    return ResourceRequest(
        groups=groups,
        isolate=rng.random() < 0.5,
        same_subtree=together,
        root_required=_random_subset(rng, TRAITS, 0.1),
        root_forbidden=_random_subset(rng, TRAITS, 0.05),
    )


def _random_group(rng: random.Random, uuids: list[str], least: int) -> RequestGroup:
    names = rng.sample(CLASSES, rng.randint(least, 2))
    return RequestGroup(
        resources={name: rng.randint(1, 2) for name in names},
        required=tuple(frozenset(rng.sample(TRAITS, rng.randint(1, 2))) for _ in range(rng.choice((0, 0, 1)))),
        forbidden=_random_subset(rng, TRAITS, 0.1),
        member_of=tuple(
            frozenset(map(uuid_of, rng.sample(AGGREGATES, rng.randint(1, 2)))) for _ in range(rng.choice((0, 0, 1)))
        ),
        forbidden_aggregates=frozenset(map(uuid_of, _random_subset(rng, AGGREGATES, 0.1))),
        in_tree=rng.choice(uuids) if rng.random() < 0.1 else None,
    )


def _random_subset(rng: random.Random, names: tuple[str, ...], probability: float) -> frozenset[str]:
    return frozenset(name for name in names if rng.random() < probability)


def oracle_results(request: ResourceRequest, trees: list[list[Provider]]) -> set[tuple[object, ...]]:
    everyone = [one for tree in trees for one in tree]
    sharing = [one for tree in trees if any(SHARES in one.traits for one in tree) for one in tree]
    found = set()
    for tree in trees:
        others = [one for one in sharing if one.root != tree[0].root]
        found |= {identity_key(arrangement) for arrangement in all_allocation_requests(request, tree, others, everyone)}
    return found


@pytest.mark.parametrize("seed", range(4))
def test_find_candidates_matches_oracle_without_duplicates(
    database_url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses small batches, so that several are read."""
    monkeypatch.setattr(provider_trees, "MAX_BATCH", 7)
    rng = random.Random(seed)
    trees = random_trees(rng, 12)
    uuids = [one.uuid for tree in trees for one in tree]

    async def scenario() -> int:
        met = 0
        async with opened(database_url) as db:
            await insert_providers(db, [one for tree in trees for one in tree])
            for _ in range(60):
                request = random_request(rng, uuids)
                expected = oracle_results(request, trees)
                found = [identity_key(one) for one in (await find_candidates(db, request)).allocation_requests]
                assert set(found) == expected, request
                assert len(found) == len(expected), request
                met += bool(found)
        return met

    assert asyncio.run(scenario()) > 15


def run_find(url: str, providers: list[Provider], request: ResourceRequest, **options: Any) -> list[AllocationRequest]:
    async def scenario() -> list[AllocationRequest]:
        async with opened(url) as db:
            await insert_providers(db, providers)
            return (await find_candidates(db, request, **options)).allocation_requests

    return asyncio.run(scenario())


def test_first_candidate_of_every_tree_precedes_second_of_any(sqlite_url: str) -> None:
    hosts = []
    for number in range(5):
        host = provider(f"host{number}", VCPU=4)
        hosts += [host, *(provider(f"gpu{number}-{n}", host, VGPU=1) for n in range(3))]
    request = ResourceRequest(
        groups={"": RequestGroup(resources={"VCPU": 1}), "1": RequestGroup(resources={"VGPU": 1})}
    )
    found = run_find(sqlite_url, hosts, request, limit=7)
    assert len({one.root for one in found[:5]}) == 5
    assert len(found) == 7
    assert len({identity_key(one) for one in found}) == 7


def test_number_of_candidates_is_limited(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder, "MAX_CANDIDATES", 500)
    host = provider("host")
    devices = [provider(f"fpga{number}", host, FPGA=4) for number in range(20)]
    request = ResourceRequest(groups={f"_{number}": RequestGroup(resources={"FPGA": 1}) for number in range(12)})
    assert len(run_find(sqlite_url, [host, *devices], request)) == 500


@pytest.mark.parametrize("enough, found", [(7, 7), (3, 5)])  # every tree has at least one result
def test_further_candidates_of_a_tree_are_limited(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, enough: int, found: int
) -> None:
    monkeypatch.setattr(finder, "MAX_WITH_ALTERNATIVES", enough)
    hosts = []
    for number in range(5):
        host = provider(f"host{number}", VCPU=4)
        hosts += [host, *(provider(f"gpu{number}-{n}", host, VGPU=1) for n in range(3))]
    request = ResourceRequest(
        groups={"": RequestGroup(resources={"VCPU": 1}), "1": RequestGroup(resources={"VGPU": 1})}
    )
    assert len(run_find(sqlite_url, hosts, request)) == found


@pytest.mark.parametrize("seconds, found", [(10.0, 5), (0.0, 1)])
def test_search_time_is_limited(sqlite_url: str, monkeypatch: pytest.MonkeyPatch, seconds: float, found: int) -> None:
    monkeypatch.setattr(finder, "MAX_SEARCH_SECONDS", seconds)
    hosts = [provider(f"host{number}", VCPU=4) for number in range(5)]
    assert len(run_find(sqlite_url, hosts, ResourceRequest(groups={"": RequestGroup(resources={"VCPU": 1})}))) == found


@pytest.mark.parametrize("groups, found", [(13, 1), (60, 1), (61, 0)])
def test_more_groups_than_sql_conditions(database_url: str, groups: int, found: int) -> None:
    host = provider("host", VCPU=4)
    devices = [provider(f"fpga{n}", host, FPGA=1) for n in range(60)]
    request = ResourceRequest(
        groups={f"_{n}": RequestGroup(resources={"FPGA": 1}) for n in range(groups)}, isolate=True
    )
    assert len(run_find(database_url, [host, *devices], request, limit=1)) == found


def test_search_yields_to_event_loop(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_trees, "MAX_BATCH", 10)
    monkeypatch.setattr(provider_trees, "MIN_BATCH", 10)
    turns = 0

    async def scenario() -> int:
        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with opened(sqlite_url) as db:
            await insert_providers(db, [provider(f"host{number}", VCPU=1) for number in range(100)])
            counting = asyncio.create_task(count())
            await asyncio.sleep(0)
            before = turns
            found = await find_candidates(db, ResourceRequest(groups={"": RequestGroup(resources={"VCPU": 2})}))
            counting.cancel()
            assert not found.allocation_requests
            return turns - before

    assert asyncio.run(scenario()) >= 10
