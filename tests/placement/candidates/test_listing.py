"""GET /resource_providers lists the providers that by themselves meet the query."""

from __future__ import annotations

import asyncio

import pytest

from kilonova.placement.candidates.model import Stock

from .support import SHARES, placement, provider, uid

HOST = provider("host", traits="HW_CPU_X86_AVX CUSTOM_FAST", aggregates="a", VCPU=Stock(8, 2), MEMORY_MB=4096)
GPU = provider("gpu", HOST, traits="CUSTOM_GPU", aggregates="b", VGPU=Stock(8, 0, min_unit=2, max_unit=6, step_size=2))
PLAIN = provider("plain", aggregates="a b", VCPU=8, DISK_GB=100)
DISK = provider("disk", aggregates="a", traits=f"{SHARES} CUSTOM_FAST", DISK_GB=1000)
ALL = (HOST, GPU, PLAIN, DISK)
A, B, C = uid("a"), uid("b"), uid("c")

CASES = {
    "": "host gpu plain disk",
    f"name={uid('gpu')}": "gpu",
    f"uuid={uid('gpu')}": "gpu",
    f"uuid={uid('gpu').replace('-', '')}": "gpu",
    f"name={uid('gpu')}&uuid={uid('host')}": "",
    f"in_tree={uid('gpu')}": "host gpu",
    f"in_tree={uid('host')}": "host gpu",
    f"in_tree={uid('nobody')}": "",
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
    f"resources=VCPU:1&required=CUSTOM_FAST&member_of={A}&in_tree={uid('gpu')}": "host",
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
    ("1.13", f"in_tree={uid('host')}"): "'in_tree' was unexpected",
    ("1.3", "resources=VCPU:1"): "'resources' was unexpected",
    ("1.2", f"member_of={A}"): "'member_of' was unexpected",
}


def test_filters(database_url: str) -> None:
    async def scenario() -> dict[str, set[str]]:
        async with placement(database_url, *ALL) as api:
            found = {}
            for query in CASES:
                answer = await api.get(f"/resource_providers?{query}")
                assert answer.status == 200, (query, answer.body)
                found[query] = {one["uuid"] for one in answer.json()["resource_providers"]}
            return found

    expected = {query: {uid(name) for name in names.split()} for query, names in CASES.items()}
    assert asyncio.run(scenario()) == expected


@pytest.mark.parametrize(("asked", "said"), WRONG.items())
def test_what_is_wrong_is_named(sqlite_url: str, asked: tuple[str, str], said: str) -> None:
    version, query = asked

    async def scenario() -> None:
        async with placement(sqlite_url, *ALL) as api:
            answer = await api.get(f"/resource_providers?{query}", version)
            assert answer.status == 400
            assert said in answer.json()["errors"][0]["detail"]

    asyncio.run(scenario())


def test_before_1_39_the_last_of_several_required_counts(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with placement(sqlite_url, *ALL) as api:
            query = "/resource_providers?required=CUSTOM_GPU&required=HW_CPU_X86_AVX"
            old, new = await api.get(query, "1.38"), await api.get(query, "1.39")
            assert [one["uuid"] for one in old.json()["resource_providers"]] == [uid("host")]
            assert new.json()["resource_providers"] == []

    asyncio.run(scenario())


def test_a_query_as_long_as_a_query_may_be(database_url: str) -> None:
    """Every parameter is a condition of its own, and no database is asked for one that nests too deep."""

    async def scenario() -> None:
        async with placement(database_url, *ALL) as api:
            queries = [f"member_of=in:{A},{uid(str(number))}" for number in range(999)]
            answer = await api.get("/resource_providers?" + "&".join(queries))
            assert answer.status == 200, answer.body
            assert {one["uuid"] for one in answer.json()["resource_providers"]} == {HOST.uuid, PLAIN.uuid, DISK.uuid}
            answer = await api.get("/resource_providers?" + "&".join([*queries, f"member_of={A}", "required=X"]))
            assert answer.status == 400
            assert "more than 1000 parameters" in answer.json()["errors"][0]["detail"]

    asyncio.run(scenario())
