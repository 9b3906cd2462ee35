"""What the database narrows and the search arranges is what trying every combination of every tree finds."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from kilonova.placement.candidates import finding, loading
from kilonova.placement.candidates.finding import find, identity
from kilonova.placement.candidates.model import Arrangement, Ask, Group, Provider, Stock
from tests.support.databases import opened

from .oracle import SHARES, all_arrangements
from .support import provider, store, uid

CLASSES = ("VCPU", "VGPU", "DISK_GB")
TRAITS = ("CUSTOM_FAST", "CUSTOM_SAFE", "CUSTOM_NEW")
AGGREGATES = ("a", "b", "c")


def forest(chance: random.Random, trees: int) -> list[list[Provider]]:
    return [_tree(chance, number) for number in range(trees)]


def _tree(chance: random.Random, number: int) -> list[Provider]:
    tree: list[Provider] = []
    for index in range(chance.choice((1, 1, 2, 4))):
        traits = [trait for trait in TRAITS if chance.random() < 0.3]
        if chance.random() < 0.15:
            traits.append(SHARES)
        stocks = {
            name: Stock(chance.choice((1, 2, 2.5, 4)), chance.choice((0, 0, 1)), 1, chance.choice((2, 8)))
            for name in CLASSES
            if chance.random() < 0.6
        }
        aggregates = " ".join(name for name in AGGREGATES if chance.random() < 0.2)
        parent = chance.choice(tree) if tree else None
        tree.append(provider(f"{number}-{index}", parent, traits=" ".join(traits), aggregates=aggregates, **stocks))
    return tree


def ask(chance: random.Random, uuids: list[str]) -> Ask:
    numbered = [f"_{number}" for number in range(chance.choice((0, 0, 1, 2, 3)))]
    groups = {suffix: _group(chance, uuids, 0 if len(numbered) > 1 else 1) for suffix in numbered}
    together: tuple[frozenset[str], ...] = ()
    if len(numbered) > 1 and chance.random() < 0.5:
        together = (frozenset(chance.sample(numbered, 2)),)
    if not any(group.resources for group in groups.values()) or chance.random() < 0.5:
        groups[""] = _group(chance, uuids, 1)
    return Ask(
        groups=groups,
        isolate=chance.random() < 0.5,
        same_subtree=together,
        root_required=_some(chance, TRAITS, 0.1),
        root_forbidden=_some(chance, TRAITS, 0.05),
    )


def _group(chance: random.Random, uuids: list[str], least: int) -> Group:
    names = chance.sample(CLASSES, chance.randint(least, 2))
    return Group(
        resources={name: chance.randint(1, 2) for name in names},
        required=tuple(frozenset(chance.sample(TRAITS, chance.randint(1, 2))) for _ in range(chance.choice((0, 0, 1)))),
        forbidden=_some(chance, TRAITS, 0.1),
        member_of=tuple(
            frozenset(map(uid, chance.sample(AGGREGATES, chance.randint(1, 2))))
            for _ in range(chance.choice((0, 0, 1)))
        ),
        forbidden_aggregates=frozenset(map(uid, _some(chance, AGGREGATES, 0.1))),
        in_tree=chance.choice(uuids) if chance.random() < 0.1 else None,
    )


def _some(chance: random.Random, names: tuple[str, ...], share: float) -> frozenset[str]:
    return frozenset(name for name in names if chance.random() < share)


def everywhere(asked: Ask, trees: list[list[Provider]]) -> set[tuple[object, ...]]:
    everyone = [one for tree in trees for one in tree]
    sharing = [one for tree in trees if any(SHARES in one.traits for one in tree) for one in tree]
    found = set()
    for tree in trees:
        others = [one for one in sharing if one.root != tree[0].root]
        found |= {identity(arrangement) for arrangement in all_arrangements(asked, tree, others, everyone)}
    return found


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_and_nothing_is_twice(database_url: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small portions, so that several are read."""
    monkeypatch.setattr(loading, "MOST", 7)
    chance = random.Random(seed)
    trees = forest(chance, 12)
    uuids = [one.uuid for tree in trees for one in tree]

    async def scenario() -> int:
        met = 0
        async with opened(database_url) as db:
            await store(db, [one for tree in trees for one in tree])
            for _ in range(60):
                asked = ask(chance, uuids)
                expected = everywhere(asked, trees)
                found = [identity(one) for one in (await find(db, asked)).arrangements]
                assert set(found) == expected, asked
                assert len(found) == len(expected), asked
                met += bool(found)
        return met

    assert asyncio.run(scenario()) > 15


def run_find(url: str, providers: list[Provider], asked: Ask, **options: Any) -> list[Arrangement]:
    async def scenario() -> list[Arrangement]:
        async with opened(url) as db:
            await store(db, providers)
            return (await find(db, asked, **options)).arrangements

    return asyncio.run(scenario())


def test_every_tree_is_named_once_before_any_is_named_twice(sqlite_url: str) -> None:
    hosts = []
    for number in range(5):
        host = provider(f"host{number}", VCPU=4)
        hosts += [host, *(provider(f"gpu{number}-{n}", host, VGPU=1) for n in range(3))]
    asked = Ask(groups={"": Group(resources={"VCPU": 1}), "1": Group(resources={"VGPU": 1})})
    found = run_find(sqlite_url, hosts, asked, limit=7)
    assert len({one.root for one in found[:5]}) == 5
    assert len(found) == 7
    assert len({identity(one) for one in found}) == 7


def test_an_answer_has_an_end(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "MOST", 500)
    host = provider("host")
    devices = [provider(f"fpga{number}", host, FPGA=4) for number in range(20)]
    asked = Ask(groups={f"_{number}": Group(resources={"FPGA": 1}) for number in range(12)})
    assert len(run_find(sqlite_url, [host, *devices], asked)) == 500


@pytest.mark.parametrize("enough, found", [(7, 7), (3, 5)])  # every tree is named at least once
def test_there_are_further_ways_to_use_a_tree_only_until_there_are_enough(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, enough: int, found: int
) -> None:
    monkeypatch.setattr(finding, "ENOUGH", enough)
    hosts = []
    for number in range(5):
        host = provider(f"host{number}", VCPU=4)
        hosts += [host, *(provider(f"gpu{number}-{n}", host, VGPU=1) for n in range(3))]
    asked = Ask(groups={"": Group(resources={"VCPU": 1}), "1": Group(resources={"VGPU": 1})})
    assert len(run_find(sqlite_url, hosts, asked)) == found


@pytest.mark.parametrize("seconds, found", [(10.0, 5), (0.0, 1)])
def test_a_search_has_an_end_in_time(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, seconds: float, found: int
) -> None:
    monkeypatch.setattr(finding, "LONGEST", seconds)
    hosts = [provider(f"host{number}", VCPU=4) for number in range(5)]
    assert len(run_find(sqlite_url, hosts, Ask(groups={"": Group(resources={"VCPU": 1})}))) == found


@pytest.mark.parametrize("groups, found", [(13, 1), (60, 1), (61, 0)])
def test_more_groups_than_one_statement_looks_at(database_url: str, groups: int, found: int) -> None:
    host = provider("host", VCPU=4)
    devices = [provider(f"fpga{n}", host, FPGA=1) for n in range(60)]
    asked = Ask(groups={f"_{n}": Group(resources={"FPGA": 1}) for n in range(groups)}, isolate=True)
    assert len(run_find(database_url, [host, *devices], asked, limit=1)) == found


def test_others_get_their_turn_while_nothing_is_found(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MOST", 10)
    monkeypatch.setattr(loading, "FEWEST", 10)
    turns = 0

    async def scenario() -> int:
        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with opened(sqlite_url) as db:
            await store(db, [provider(f"host{number}", VCPU=1) for number in range(100)])
            counting = asyncio.create_task(count())
            await asyncio.sleep(0)
            before = turns
            found = await find(db, Ask(groups={"": Group(resources={"VCPU": 2})}))
            counting.cancel()
            assert not found.arrangements
            return turns - before

    assert asyncio.run(scenario()) >= 10
