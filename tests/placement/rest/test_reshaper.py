"""The reshaper: everything moves at once, or nothing does."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.ids import new_id
from tests.placement.rest.support import Place, claim, error, on_both, refused, without
from tests.placement.support import everything, marks
from tests.support.proves import proves


class Host:
    """A host with two consumers, whose VCPUs are to go to a child."""

    def __init__(self, root: str, child: str, one: str, two: str) -> None:
        self.root, self.child, self.one, self.two = root, child, one, two

    def inventories(self) -> dict[str, Any]:
        return {
            self.root: {"resource_provider_generation": 3, "inventories": {"DISK_GB": {"total": 100}}},
            self.child: {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}},
        }

    def allocations(self) -> dict[str, Any]:
        return {
            self.one: claim({self.root: {"DISK_GB": 60}, self.child: {"VCPU": 6}}, 1),
            self.two: claim({self.child: {"VCPU": 2}}, 1),
        }

    def body(self) -> dict[str, Any]:
        return {"inventories": self.inventories(), "allocations": self.allocations()}


async def host(place: Place) -> Host:
    root = await place.provider(VCPU=8, DISK_GB=100)
    found = Host(root, await place.provider("child", root), new_id(), new_id())
    assert (await place.allocate(found.one, on={root: {"VCPU": 6, "DISK_GB": 60}})).status == 204
    assert (await place.allocate(found.two, on={root: {"VCPU": 2}})).status == 204
    return found


async def reshape(place: Place, body: Any, **options: Any) -> Any:
    return await place.post("/reshaper", body, as_="service", **options)


@proves("POST /placement/reshaper")
@on_both
async def test_inventory_and_allocations_move_to_a_child(place: Place) -> None:
    it = await host(place)
    before = {uuid: await marks(place.db, uuid) for uuid in (it.root, it.child)}
    answer = await reshape(place, it.body())
    assert (answer.status, answer.body) == (204, b"")
    assert await place.used(it.root) == {"DISK_GB": 60}
    assert await place.used(it.child) == {"VCPU": 8}
    assert await place.held(it.two) == {it.child: {"VCPU": 2}}
    # Inventories are written twice, allocations once.
    for uuid, seen in before.items():
        now = await marks(place.db, uuid)
        assert (now[0] - seen[0], now[2] > seen[2]) == (3, True)
    refused(await reshape(place, it.body()), 409, "actual: 6, given: 3", "placement.concurrent_update")


@on_both
async def test_with_no_allocations_only_inventories_change(place: Place) -> None:
    uuid, other = await place.provider(VCPU=8), await place.provider()
    body = {
        "inventories": {
            uuid: {"resource_provider_generation": 1, "inventories": {}},
            other: {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}},
        },
        "allocations": {},
    }
    assert (await reshape(place, body)).status == 204
    assert (await place.used(uuid), await place.used(other)) == ({}, {"VCPU": 0})


Change = Any
MISSING = "99999999-9999-4999-8999-999999999999"


def _stale(it: Host, body: Any) -> None:
    body["inventories"][it.child]["resource_provider_generation"] = 9


def _consumer(it: Host, body: Any) -> None:
    body["allocations"][it.one]["consumer_generation"] = 99


def _new(it: Host, body: Any) -> None:
    body["allocations"][it.one]["consumer_generation"] = None


def _no_child(it: Host, body: Any) -> None:
    body["inventories"][MISSING] = body["inventories"].pop(it.child)


def _no_provider(it: Host, body: Any) -> None:
    body["allocations"][it.two]["allocations"] = {MISSING: {"resources": {"VCPU": 1}}}


def _no_class(it: Host, body: Any) -> None:
    body["inventories"][it.child]["inventories"]["DISK_OF_STEEL"] = {"total": 1}


def _no_class_held(it: Host, body: Any) -> None:
    body["allocations"][it.two]["allocations"][it.child]["resources"] = {"CUSTOM_STEEL": 1}


def _in_use(it: Host, body: Any) -> None:
    del body["allocations"][it.two]


def _too_much(it: Host, body: Any) -> None:
    body["inventories"][it.child]["inventories"]["VCPU"]["total"] = 7


def _units(it: Host, body: Any) -> None:
    body["inventories"][it.root]["inventories"]["DISK_GB"]["max_unit"] = 50


def _reserved(it: Host, body: Any) -> None:
    body["inventories"][it.child]["inventories"]["VCPU"]["reserved"] = 9


REFUSED: list[tuple[Change, int, str, str]] = [
    (_stale, 409, "actual: 0, given: 9", "placement.concurrent_update"),
    (_consumer, 409, "consumer generation conflict - expected 1 but got 99", "placement.concurrent_update"),
    (_new, 409, "expected 1 but got null", "placement.concurrent_update"),
    (_no_child, 400, f"Resource provider {MISSING} in inventories not found", "placement.resource_provider.not_found"),
    (_no_provider, 400, f"Allocation for resource provider '{MISSING}'", "placement.undefined_code"),
    (_no_class, 400, "No such resource class DISK_OF_STEEL", "placement.undefined_code"),
    (_no_class_held, 400, "No such resource class CUSTOM_STEEL", "placement.undefined_code"),
    (_in_use, 409, "Inventory for 'VCPU' on resource provider", "placement.inventory.inuse"),
    (_too_much, 409, "Unable to allocate inventory", "placement.undefined_code"),
    (_units, 409, "would violate inventory constraints", "placement.undefined_code"),
    (_reserved, 400, "Unable to update inventory", "placement.undefined_code"),
]


@pytest.mark.parametrize("change, status, words, code", REFUSED)
@on_both
async def test_what_is_refused_changes_nothing(
    place: Place, change: Change, status: int, words: str, code: str
) -> None:
    it = await host(place)
    before = await everything(place.db)
    body = it.body()
    change(it, body)
    refused(await reshape(place, body), status, words, code)
    assert await everything(place.db) == before
    assert (await reshape(place, it.body())).status == 204


@on_both
async def test_wrong_bodies(place: Place) -> None:
    it = await host(place)
    good = it.body()
    for body in (
        {"cows": "moo"},
        without(good, "allocations"),
        without(good, "inventories"),
        {**good, "inventories": {}},
        {**good, "more": 1},
        {**good, "inventories": {"x": good["inventories"][it.root]}},
        {**good, "inventories": {it.root: {"inventories": {}}}},
        {**good, "allocations": {it.one: {**good["allocations"][it.one], "bad_field": "moo"}}},
    ):
        refused(await reshape(place, body), 400, "JSON does not validate")


@on_both
async def test_bodies_at_each_version(place: Place) -> None:
    it = await host(place)
    typed, mapped = it.body(), it.body()
    for uuid in (it.one, it.two):
        mapped["allocations"][uuid]["mappings"] = {"": [it.child]}
        del mapped["allocations"][uuid]["consumer_type"]
    for version, body in (("1.30", typed), ("1.33", mapped), ("1.37", typed), ("1.38", mapped)):
        answer = await reshape(place, body, version=version)
        assert (answer.status, "JSON does not validate" in error(answer)["detail"]) == (400, True)
    assert (await reshape(place, mapped, version="1.34")).status == 204


@on_both
async def test_reshaping_is_for_services_alone(place: Place) -> None:
    for as_ in ("admin", "system", "member"):
        refused(await place.post("/reshaper", {"wrong": 1}, as_=as_), 403, "Policy")
