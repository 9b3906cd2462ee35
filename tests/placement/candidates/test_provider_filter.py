"""`GET /resource_providers` lists the providers that meet the query by themselves."""

from __future__ import annotations

import asyncio

import pytest

from kilonova.placement.candidates.model import InventoryUsage

from .support import SHARES, placement, provider, uuid_of

HOST = provider("host", traits="HW_CPU_X86_AVX CUSTOM_FAST", aggregates="a", VCPU=InventoryUsage(8, 2), MEMORY_MB=4096)
GPU = provider(
    "gpu", HOST, traits="CUSTOM_GPU", aggregates="b", VGPU=InventoryUsage(8, 0, min_unit=2, max_unit=6, step_size=2)
)
PLAIN = provider("plain", aggregates="a b", VCPU=8, DISK_GB=100)
DISK = provider("disk", aggregates="a", traits=f"{SHARES} CUSTOM_FAST", DISK_GB=1000)
ALL = (HOST, GPU, PLAIN, DISK)
A, B, C = uuid_of("a"), uuid_of("b"), uuid_of("c")

CASES = {
    "": "host gpu plain disk",
    f"name={uuid_of('gpu')}": "gpu",
    f"uuid={uuid_of('gpu')}": "gpu",
    f"uuid={uuid_of('gpu').replace('-', '')}": "gpu",
    f"name={uuid_of('gpu')}&uuid={uuid_of('host')}": "",
    f"in_tree={uuid_of('gpu')}": "host gpu",
    f"in_tree={uuid_of('host')}": "host gpu",
    f"in_tree={uuid_of('nobody')}": "",
    f"member_of={A}": "host plain disk",
    f"member_of={A}&member_of={B}": "plain",
    f"member_of=in:{A},{C}&member_of=!{B}": "host disk",
    f"member_of=!in:{A},{B}": "",
    "required=CUSTOM_FAST": "host disk",
    f"required=CUSTOM_FAST,!{SHARES}": "host",
    "required=in:CUSTOM_GPU,HW_CPU_X86_AVX": "host gpu",
    "required=in:CUSTOM_GPU,CUSTOM_FAST&required=HW_CPU_X86_AVX": "host",
    "resources=VCPU:6": "host plain",
    "resources=VCPU:7": "plain",
    "resources=VCPU:1,DISK_GB:1": "plain",
    "resources=VGPU:1": "",
    "resources=VGPU:2": "gpu",
    "resources=VGPU:3": "",
    "resources=VGPU:8": "",
    f"resources=VCPU:1&required=CUSTOM_FAST&member_of={A}&in_tree={uuid_of('gpu')}": "host",
}
WRONG = {
    ("1.39", "resources=NOPE:1"): "Invalid resource class in resources parameter",
    ("1.39", "required=CUSTOM_NOPE"): "No such trait(s): CUSTOM_NOPE.",
    ("1.39", "member_of=x"): "Expected 'member_of' parameter to contain valid UUID(s).",
    ("1.39", "in_tree=x"): "Invalid query string parameters",
    ("1.38", "required=in:CUSTOM_FAST"): "only supported since microversion 1.39.",
    ("1.31", f"member_of=!{A}"): "Forbidden member_of parameters are not supported",
    ("1.23", f"member_of={A}&member_of={B}"): "Multiple member_of parameters are not supported",
    ("1.21", "required=!CUSTOM_FAST"): "of the form: HW_CPU_X86_VMX,CUSTOM_MAGIC. Got: !CUSTOM_FAST",
    ("1.17", "required=CUSTOM_FAST"): "'required' was unexpected",
    ("1.13", f"in_tree={uuid_of('host')}"): "'in_tree' was unexpected",
    ("1.3", "resources=VCPU:1"): "'resources' was unexpected",
    ("1.2", f"member_of={A}"): "'member_of' was unexpected",
}


def test_filters_select_providers(database_url: str) -> None:
    async def scenario() -> dict[str, set[str]]:
        async with placement(database_url, *ALL) as api:
            found = {}
            for query in CASES:
                response = await api.get(f"/resource_providers?{query}")
                assert response.status == 200, (query, response.body)
                found[query] = {one["uuid"] for one in response.json()["resource_providers"]}
            return found

    expected = {query: {uuid_of(name) for name in names.split()} for query, names in CASES.items()}
    assert asyncio.run(scenario()) == expected


@pytest.mark.parametrize(("asked", "message"), WRONG.items())
def test_invalid_filter_error(sqlite_url: str, asked: tuple[str, str], message: str) -> None:
    version, query = asked

    async def scenario() -> None:
        async with placement(sqlite_url, *ALL) as api:
            response = await api.get(f"/resource_providers?{query}", version)
            assert response.status == 400
            assert message in response.json()["errors"][0]["detail"]

    asyncio.run(scenario())


def test_before_1_39_last_required_applies(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with placement(sqlite_url, *ALL) as api:
            query = "/resource_providers?required=CUSTOM_GPU&required=HW_CPU_X86_AVX"
            old, new = await api.get(query, "1.38"), await api.get(query, "1.39")
            assert [one["uuid"] for one in old.json()["resource_providers"]] == [uuid_of("host")]
            assert new.json()["resource_providers"] == []

    asyncio.run(scenario())


def test_query_of_maximum_length(database_url: str) -> None:
    """Each parameter is a condition; databases limit the depth of nested conditions."""

    async def scenario() -> None:
        async with placement(database_url, *ALL) as api:
            queries = [f"member_of=in:{A},{uuid_of(str(number))}" for number in range(999)]
            response = await api.get("/resource_providers?" + "&".join(queries))
            assert response.status == 200, response.body
            assert {one["uuid"] for one in response.json()["resource_providers"]} == {HOST.uuid, PLAIN.uuid, DISK.uuid}
            response = await api.get("/resource_providers?" + "&".join([*queries, f"member_of={A}", "required=X"]))
            assert response.status == 400
            assert "more than 1000 parameters" in response.json()["errors"][0]["detail"]

    asyncio.run(scenario())
