"""The reshaper is all or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.ids import new_id
from tests.placement.rest.support import Place, allocations_body, assert_error, error, on_both, without
from tests.placement.support import all_rows, counters
from tests.support.route_coverage import proves


class Host:
    """A host with two consumers, whose VCPU allocations move to a child."""

    def __init__(self, root: str, child: str, one: str, two: str) -> None:
        self.root, self.child, self.one, self.two = root, child, one, two

    def inventories(self) -> dict[str, Any]:
        return {
            self.root: {"resource_provider_generation": 3, "inventories": {"DISK_GB": {"total": 100}}},
            self.child: {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}},
        }

    def allocations(self) -> dict[str, Any]:
        return {
            self.one: allocations_body({self.root: {"DISK_GB": 60}, self.child: {"VCPU": 6}}, 1),
            self.two: allocations_body({self.child: {"VCPU": 2}}, 1),
        }

    def body(self) -> dict[str, Any]:
        return {"inventories": self.inventories(), "allocations": self.allocations()}


async def make_host(place: Place) -> Host:
    root = await place.provider(VCPU=8, DISK_GB=100)
    found = Host(root, await place.provider("child", root), new_id(), new_id())
    assert (await place.allocate(found.one, on={root: {"VCPU": 6, "DISK_GB": 60}})).status == 204
    assert (await place.allocate(found.two, on={root: {"VCPU": 2}})).status == 204
    return found


async def reshape(place: Place, body: Any, **options: Any) -> Any:
    return await place.post("/reshaper", body, as_="service", **options)


@proves("POST /placement/reshaper")
@on_both
async def test_reshape_moves_inventory_and_allocations_to_child(place: Place) -> None:
    host = await make_host(place)
    before = {uuid: await counters(place.db, uuid) for uuid in (host.root, host.child)}
    response = await reshape(place, host.body())
    assert (response.status, response.body) == (204, b"")
    assert await place.usages(host.root) == {"DISK_GB": 60}
    assert await place.usages(host.child) == {"VCPU": 8}
    assert await place.allocations(host.two) == {host.child: {"VCPU": 2}}
    # Inventories are written twice and allocations once.
    for uuid, seen in before.items():
        now = await counters(place.db, uuid)
        assert (now[0] - seen[0], now[2] > seen[2]) == (3, True)
    assert_error(await reshape(place, host.body()), 409, "actual: 6, given: 3", "placement.concurrent_update")


@on_both
async def test_reshape_without_allocations_changes_inventories(place: Place) -> None:
    uuid, other = await place.provider(VCPU=8), await place.provider()
    body = {
        "inventories": {
            uuid: {"resource_provider_generation": 1, "inventories": {}},
            other: {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}},
        },
        "allocations": {},
    }
    assert (await reshape(place, body)).status == 204
    assert (await place.usages(uuid), await place.usages(other)) == ({}, {"VCPU": 0})


Change = Any
MISSING = "99999999-9999-4999-8999-999999999999"


def _stale_provider_generation(host: Host, body: Any) -> None:
    body["inventories"][host.child]["resource_provider_generation"] = 9


def _stale_consumer_generation(host: Host, body: Any) -> None:
    body["allocations"][host.one]["consumer_generation"] = 99


def _generation_of_new_consumer(host: Host, body: Any) -> None:
    body["allocations"][host.one]["consumer_generation"] = None


def _child_without_inventory(host: Host, body: Any) -> None:
    body["inventories"][MISSING] = body["inventories"].pop(host.child)


def _unknown_provider(host: Host, body: Any) -> None:
    body["allocations"][host.two]["allocations"] = {MISSING: {"resources": {"VCPU": 1}}}


def _unknown_class_in_inventory(host: Host, body: Any) -> None:
    body["inventories"][host.child]["inventories"]["DISK_OF_STEEL"] = {"total": 1}


def _unknown_class_in_allocation(host: Host, body: Any) -> None:
    body["allocations"][host.two]["allocations"][host.child]["resources"] = {"CUSTOM_STEEL": 1}


def _inventory_in_use(host: Host, body: Any) -> None:
    del body["allocations"][host.two]


def _allocation_beyond_capacity(host: Host, body: Any) -> None:
    body["inventories"][host.child]["inventories"]["VCPU"]["total"] = 7


def _allocation_beyond_max_unit(host: Host, body: Any) -> None:
    body["inventories"][host.root]["inventories"]["DISK_GB"]["max_unit"] = 50


def _reserved_above_total(host: Host, body: Any) -> None:
    body["inventories"][host.child]["inventories"]["VCPU"]["reserved"] = 9


REFUSED: list[tuple[Change, int, str, str]] = [
    (_stale_provider_generation, 409, "actual: 0, given: 9", "placement.concurrent_update"),
    (
        _stale_consumer_generation,
        409,
        "consumer generation conflict - expected 1 but got 99",
        "placement.concurrent_update",
    ),
    (_generation_of_new_consumer, 409, "expected 1 but got null", "placement.concurrent_update"),
    (
        _child_without_inventory,
        400,
        f"Resource provider {MISSING} in inventories not found",
        "placement.resource_provider.not_found",
    ),
    (_unknown_provider, 400, f"Allocation for resource provider '{MISSING}'", "placement.undefined_code"),
    (_unknown_class_in_inventory, 400, "No such resource class DISK_OF_STEEL", "placement.undefined_code"),
    (_unknown_class_in_allocation, 400, "No such resource class CUSTOM_STEEL", "placement.undefined_code"),
    (_inventory_in_use, 409, "Inventory for 'VCPU' on resource provider", "placement.inventory.inuse"),
    (_allocation_beyond_capacity, 409, "Unable to allocate inventory", "placement.undefined_code"),
    (_allocation_beyond_max_unit, 409, "would violate inventory constraints", "placement.undefined_code"),
    (_reserved_above_total, 400, "Unable to update inventory", "placement.undefined_code"),
]


@pytest.mark.parametrize("change, status, words, code", REFUSED)
@on_both
async def test_refused_reshape_writes_nothing(place: Place, change: Change, status: int, words: str, code: str) -> None:
    host = await make_host(place)
    before = await all_rows(place.db)
    body = host.body()
    change(host, body)
    assert_error(await reshape(place, body), status, words, code)
    assert await all_rows(place.db) == before
    assert (await reshape(place, host.body())).status == 204


@on_both
async def test_invalid_bodies(place: Place) -> None:
    host = await make_host(place)
    good = host.body()
    for body in (
        {"cows": "moo"},
        without(good, "allocations"),
        without(good, "inventories"),
        {**good, "inventories": {}},
        {**good, "more": 1},
        {**good, "inventories": {"x": good["inventories"][host.root]}},
        {**good, "inventories": {host.root: {"inventories": {}}}},
        {**good, "allocations": {host.one: {**good["allocations"][host.one], "bad_field": "moo"}}},
    ):
        assert_error(await reshape(place, body), 400, "JSON does not validate")


@on_both
async def test_body_at_each_version(place: Place) -> None:
    host = await make_host(place)
    typed, mapped = host.body(), host.body()
    for uuid in (host.one, host.two):
        mapped["allocations"][uuid]["mappings"] = {"": [host.child]}
        del mapped["allocations"][uuid]["consumer_type"]
    for version, body in (("1.30", typed), ("1.33", mapped), ("1.37", typed), ("1.38", mapped)):
        response = await reshape(place, body, version=version)
        assert (response.status, "JSON does not validate" in error(response)["detail"]) == (400, True)
    assert (await reshape(place, mapped, version="1.34")).status == 204


@on_both
async def test_reshape_needs_service_role(place: Place) -> None:
    for as_ in ("admin", "system", "member"):
        assert_error(await place.post("/reshaper", {"wrong": 1}, as_=as_), 403, "Policy")
