"""Usages of a provider and of a project."""

from __future__ import annotations

from kilonova.ids import new_id
from tests.placement.rest.support import PROJECT, USER, Place, allocations_body, assert_error, on_both, without
from tests.support.cloud import DEMO, OTHER
from tests.support.route_coverage import proves


@proves("GET /placement/resource_providers/{uuid}/usages")
@on_both
async def test_usages_of_provider(place: Place) -> None:
    uuid = await place.provider(VCPU=8, DISK_GB=9)
    await place.allocate(new_id(), on={uuid: {"VCPU": 3}})
    await place.allocate(new_id(), on={uuid: {"VCPU": 2}})
    body = await place.get_json(f"/resource_providers/{uuid}/usages")
    assert body == {"resource_provider_generation": 3, "usages": {"VCPU": 5, "DISK_GB": 0}}
    assert_error(await place.get(f"/resource_providers/{new_id()}/usages"), 404, "No resource provider with uuid")


@proves("GET /placement/usages")
@on_both
async def test_usages_of_project(place: Place) -> None:
    uuid = await place.provider(VCPU=80, DISK_GB=90)
    for user, kind in ((USER, "INSTANCE"), (USER, "MIGRATION"), ("other", "INSTANCE")):
        await place.allocate(new_id(), on={uuid: {"VCPU": 2, "DISK_GB": 1}}, user_id=user, consumer_type=kind)
    old = without(allocations_body({uuid: {"VCPU": 5}}), "consumer_type")
    await place.put(f"/allocations/{new_id()}", old, version="1.37")
    await place.allocate(new_id(), on={uuid: {"VCPU": 50}}, project_id="another")

    async def used(more: str = "", version: str = "1.39") -> dict[str, object]:
        body: dict[str, object] = (await place.get_json(f"/usages?project_id={PROJECT}{more}", version=version))[
            "usages"
        ]
        return body

    instances = {"VCPU": 4, "DISK_GB": 2, "consumer_count": 2}
    unknown = {"VCPU": 5, "consumer_count": 1}
    assert await used() == {
        "INSTANCE": instances,
        "MIGRATION": {"VCPU": 2, "DISK_GB": 1, "consumer_count": 1},
        "unknown": unknown,
    }
    assert await used("&consumer_type=INSTANCE") == {"INSTANCE": instances}
    assert await used("&consumer_type=unknown") == {"unknown": unknown}
    assert await used("&consumer_type=all") == {"all": {"VCPU": 11, "DISK_GB": 3, "consumer_count": 4}}
    assert await used("&consumer_type=ALL") == {}
    assert await used(f"&user_id={USER}&consumer_type=all") == {"all": {"VCPU": 9, "DISK_GB": 2, "consumer_count": 3}}
    for version in ("1.9", "1.37"):
        assert await used(version=version) == {"VCPU": 11, "DISK_GB": 3}
        assert await used("&user_id=other", version=version) == {"VCPU": 2, "DISK_GB": 1}
    assert await place.get_json("/usages?project_id=nobody") == {"usages": {}}
    assert await place.get_json("/usages?project_id=nobody&consumer_type=all") == {"usages": {}}


@on_both
async def test_invalid_queries(place: Place) -> None:
    for query, words in (
        ("", "'project_id' is a required property"),
        ("?user_id=a", "'project_id' is a required property"),
        ("?project_id=", "Failed validating 'minLength'"),
        (f"?project_id={'a' * 256}", "Failed validating 'maxLength'"),
        ("?project_id=a&user_id=", "Failed validating 'minLength'"),
        ("?project_id=a&consumer_type=instance", "does not match"),
        ("?project_id=a&dummy=1", "Additional properties are not allowed"),
    ):
        assert_error(await place.get("/usages" + query), 400, words)
    assert (await place.get("/usages?project_id=a&consumer_type=INSTANCE", version="1.37")).status == 400


@on_both
async def test_readers_see_only_their_own_project(place: Place) -> None:
    for as_ in ("reader", "member", "manager", "admin", "service"):
        assert (await place.get(f"/usages?project_id={DEMO}", as_=as_)).status == 200
    for as_ in ("reader", "member", "manager"):
        assert_error(await place.get(f"/usages?project_id={OTHER}", as_=as_), 403, "Policy")
    assert_error(await place.get(f"/usages?project_id={DEMO}", as_="system"), 403, "Policy")
