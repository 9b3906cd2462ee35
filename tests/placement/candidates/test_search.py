"""The search finds exactly the allocation requests that the brute-force oracle finds."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from kilonova.placement.candidates.model import (
    AllocationRequest,
    InventoryUsage,
    Provider,
    RequestGroup,
    ResourceRequest,
)
from kilonova.placement.candidates.search import allocation_requests
from kilonova.placement.host_providers import SHARING_TRAIT

from .oracle import all_allocation_requests

CLASSES = ("VCPU", "VGPU", "DISK_GB")
TRAITS = ("FAST", "SAFE", SHARING_TRAIT)
AGGREGATES = ("a", "b")


def some_of(values: Iterable[str], most: int = 2) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(sorted(values)), max_size=most)


def any_of(values: Iterable[str]) -> st.SearchStrategy[tuple[frozenset[str], ...]]:
    one = st.frozensets(st.sampled_from(sorted(values)), min_size=1, max_size=2)
    return st.lists(one, max_size=1).map(tuple)


stocks = st.builds(
    InventoryUsage,
    capacity=st.sampled_from((1, 2, 2.5, 4)),
    used=st.sampled_from((0, 0, 1)),
    min_unit=st.sampled_from((1, 1, 2)),
    max_unit=st.sampled_from((8, 8, 2)),
    step_size=st.sampled_from((1, 1, 2)),
)


@st.composite
def trees(draw: st.DrawFn, name: str, most: int) -> list[Provider]:
    tree: list[Provider] = []
    for index in range(draw(st.integers(1, most))):
        parent = tree[draw(st.integers(0, index - 1))].uuid if index else None
        tree.append(
            Provider(
                f"{name}{index}",
                parent,
                f"{name}0",
                draw(st.dictionaries(st.sampled_from(CLASSES), stocks, max_size=3)),
                draw(some_of(TRAITS)),
                draw(some_of(AGGREGATES)),
            )
        )
    return draw(st.permutations(tree))


@st.composite
def groups(draw: st.DrawFn, uuids: list[str], least: int) -> RequestGroup:
    return RequestGroup(
        resources=draw(st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 2), min_size=least, max_size=2)),
        required=draw(any_of(TRAITS)),
        forbidden=draw(some_of(TRAITS, 1)) if draw(st.booleans()) else frozenset(),
        member_of=draw(any_of(AGGREGATES)) if draw(st.booleans()) else (),
        forbidden_aggregates=draw(some_of(AGGREGATES, 1)) if draw(st.booleans()) else frozenset(),
        in_tree=draw(st.sampled_from([None, None, None, *uuids])),
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[ResourceRequest, list[Provider], list[Provider]]:
    tree = draw(trees("t", 4))
    sharing = [provider for name in "xy" if draw(st.booleans()) for provider in draw(trees(name, 2))]
    uuids = [provider.uuid for provider in (*tree, *sharing)]
    numbered = [f"_{index}" for index in range(draw(st.integers(0, 3)))]
    requested = {suffix: draw(groups(uuids, 0)) for suffix in numbered}
    if not numbered or (len(numbered) < 3 and draw(st.booleans())):
        requested[""] = draw(groups(uuids, 1))
    together = []
    if numbered:
        one = st.frozensets(st.sampled_from(numbered), min_size=1, max_size=3)
        together = draw(st.lists(one, max_size=2))
    ask = ResourceRequest(
        groups=requested,
        isolate=draw(st.booleans()),
        same_subtree=tuple(together),
        root_required=draw(some_of(TRAITS, 1)) if draw(st.booleans()) else frozenset(),
        root_forbidden=draw(some_of(TRAITS, 1)) if draw(st.booleans()) else frozenset(),
    )
    return ask, tree, sharing


def comparable(found: Iterable[AllocationRequest]) -> list[str]:
    return sorted(
        repr(
            (
                one.root,
                sorted((uuid, sorted(taken.items())) for uuid, taken in one.allocations.items()),
                sorted((suffix, sorted(uuids)) for suffix, uuids in one.mappings.items()),
            )
        )
        for one in found
    )


@settings(max_examples=200, deadline=None)
@given(situations())
def test_search_matches_oracle(
    situation: tuple[ResourceRequest, list[Provider], list[Provider]],
) -> None:
    found = comparable(allocation_requests(*situation))
    assert found == comparable(all_allocation_requests(*situation))
    assert len(set(found)) == len(found)


@settings(max_examples=80, deadline=None)
@given(situations())
def test_search_without_nested_uses_one_provider_of_the_tree(
    situation: tuple[ResourceRequest, list[Provider], list[Provider]],
) -> None:
    ask, tree, sharing = situation
    mine = {provider.uuid for provider in tree}

    def flat(one: AllocationRequest) -> bool:
        used = {uuid for uuids in one.mappings.values() for uuid in uuids}
        return len(used & mine) <= 1

    expected = [one for one in all_allocation_requests(ask, tree, sharing) if flat(one)]
    assert comparable(allocation_requests(ask, tree, sharing, nested=False)) == comparable(expected)


def pool(count: int, capacity: int = 1) -> list[Provider]:
    root = Provider("root", None, "root", {})
    return [root, *(Provider(f"p{n}", "root", "root", {"FPGA": InventoryUsage(capacity, 0)}) for n in range(count))]


def fpgas(count: int, *, isolate: bool = False) -> ResourceRequest:
    return ResourceRequest(groups={f"_{n}": RequestGroup(resources={"FPGA": 1}) for n in range(count)}, isolate=isolate)


def test_isolated_groups_exceeding_providers_fail_fast() -> None:
    started = time.process_time()
    assert list(allocation_requests(fpgas(12, isolate=True), pool(11, 8))) == []
    assert list(allocation_requests(fpgas(12), pool(11))) == []
    assert time.process_time() - started < 10


def test_results_are_lazy() -> None:
    found = list(islice(allocation_requests(fpgas(12, isolate=True), pool(30)), 5))
    assert len(comparable(found)) == 5


def test_unnumbered_group_without_resources_applies_to_root() -> None:
    root = Provider("root", None, "root", {}, frozenset({"FAST"}))
    child = Provider("child", "root", "root", {"VGPU": InventoryUsage(1, 0)}, frozenset({"SAFE"}))
    gpu = RequestGroup(resources={"VGPU": 1})
    fast, safe = (RequestGroup(required=(frozenset({trait}),)) for trait in ("FAST", "SAFE"))
    [found] = allocation_requests(ResourceRequest(groups={"": fast, "_G": gpu}), [root, child])
    assert found == AllocationRequest("root", {"child": {"VGPU": 1}}, {"_G": ["child"]})
    assert list(allocation_requests(ResourceRequest(groups={"": safe, "_G": gpu}), [root, child])) == []


def test_search_with_many_groups() -> None:
    found = next(allocation_requests(fpgas(900), pool(2, 1000)))
    assert sum(taken["FPGA"] for taken in found.allocations.values()) == 900
    assert len(found.mappings) == 900


def test_search_gives_up_after_fruitless_steps() -> None:
    """Thirteen groups of 2 and twelve providers of 3: enough capacity in total, but no assignment fits."""
    requested = ResourceRequest(groups={f"_{n}": RequestGroup(resources={"FPGA": 2}) for n in range(13)})
    started = time.process_time()
    assert list(allocation_requests(requested, pool(12, 3))) == []
    assert time.process_time() - started < 30


def test_search_ends_for_nearly_fitting_subtrees() -> None:
    """One device too few below each cell."""
    tree = [Provider("root", None, "root", {}, frozenset(), frozenset())]
    for cell in range(16):
        tree.append(Provider(f"cell{cell}", "root", "root", {"VCPU": InventoryUsage(8, 0)}, frozenset(), frozenset()))
        for device in range(12):
            stock = {"VGPU": InventoryUsage(4, 0)}
            tree.append(Provider(f"d{cell}-{device}", f"cell{cell}", "root", stock, frozenset(), frozenset()))
    groups = {"_C": RequestGroup(resources={"VCPU": 1})} | {
        f"_{n}": RequestGroup(resources={"VGPU": 1}) for n in range(13)
    }
    started = time.process_time()
    requested = ResourceRequest(groups=groups, isolate=True, same_subtree=(frozenset(groups),))
    assert next(allocation_requests(requested, tree), None) is None
    assert time.process_time() - started < 10


def test_search_in_tree_deeper_than_recursion_limit() -> None:
    tree = [Provider("p0", None, "p0", {"VCPU": InventoryUsage(1, 0)}, frozenset(), frozenset())]
    for depth in range(1, 1500):
        tree.append(Provider(f"p{depth}", f"p{depth - 1}", "p0", {}, frozenset(), frozenset()))
    tree[-1] = Provider("leaf", "p1498", "p0", {"VGPU": InventoryUsage(1, 0)}, frozenset(), frozenset())
    groups = {"_A": RequestGroup(resources={"VCPU": 1}), "_B": RequestGroup(resources={"VGPU": 1})}
    (found,) = allocation_requests(ResourceRequest(groups=groups, same_subtree=(frozenset(groups),)), tree)
    assert found.mappings == {"_A": ["p0"], "_B": ["leaf"]}
