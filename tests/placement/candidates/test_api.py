"""`GET /allocation_candidates` at its microversions."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import pytest

from kilonova.placement.candidates.model import InventoryUsage, Provider
from tests.support.databases import sqlite_template

from .support import SHARES, Placement, placement, provider, uuid_of

HOST = provider(
    "host", traits="HW_CPU_X86_AVX CUSTOM_FAST", aggregates="agg", VCPU=InventoryUsage(8, 2), MEMORY_MB=4096
)
GPUS = [provider(f"gpu{number}", HOST, traits="CUSTOM_GPU", VGPU=2, FPGA=1) for number in range(2)]
PLAIN = provider("plain", aggregates="agg", VCPU=8, MEMORY_MB=4096, DISK_GB=100)
DISK = provider("disk", aggregates="agg", traits=SHARES, DISK_GB=1000)
ALL = (HOST, *GPUS, PLAIN, DISK)


def get_candidates(database_url: str, query: str, version: str = "1.39", providers: tuple[Provider, ...] = ALL) -> Any:
    async def scenario() -> Any:
        async with placement(database_url, *providers) as api:
            return await api.candidates(query, version)

    return asyncio.run(scenario())


def in_all_versions(database_url: str, query: str, *versions: str) -> dict[str, Any]:
    async def scenario() -> dict[str, Any]:
        async with placement(database_url, *ALL) as api:
            return {version: await api.candidates(query, version) for version in versions}

    return asyncio.run(scenario())


def test_newest_version(database_url: str) -> None:
    body = get_candidates(
        database_url, f"resources=VCPU:1,DISK_GB:5&resources_G=VGPU:2&required_G=CUSTOM_GPU&in_tree_G={uuid_of('gpu1')}"
    )
    first, second = body["allocation_requests"]
    assert first == {
        "allocations": {
            uuid_of("host"): {"resources": {"VCPU": 1}},
            uuid_of("disk"): {"resources": {"DISK_GB": 5}},
            uuid_of("gpu0"): {"resources": {"VGPU": 2}},
        },
        "mappings": {"": [uuid_of("host"), uuid_of("disk")], "_G": [uuid_of("gpu0")]},
    }
    assert second["mappings"]["_G"] == [uuid_of("gpu1")]
    summaries = body["provider_summaries"]
    assert set(summaries) == {uuid_of(name) for name in ("host", "gpu0", "gpu1", "disk")}
    assert summaries[uuid_of("host")] == {
        "resources": {"VCPU": {"capacity": 8, "used": 2}, "MEMORY_MB": {"capacity": 4096, "used": 0}},
        "traits": ["HW_CPU_X86_AVX", "CUSTOM_FAST"],
        "parent_provider_uuid": None,
        "root_provider_uuid": uuid_of("host"),
    }
    assert summaries[uuid_of("gpu0")]["parent_provider_uuid"] == uuid_of("host")
    assert summaries[uuid_of("gpu0")]["root_provider_uuid"] == uuid_of("host")


def test_older_versions(database_url: str) -> None:
    versions = ("1.10", "1.12", "1.16", "1.17", "1.26", "1.27", "1.28", "1.29", "1.33", "1.34")
    found = in_all_versions(database_url, "resources=VGPU:1", *versions)
    assert found["1.10"]["allocation_requests"][0] == {
        "allocations": [{"resource_provider": {"uuid": uuid_of("gpu0")}, "resources": {"VGPU": 1}}]
    }
    assert found["1.12"]["allocation_requests"][0] == {"allocations": {uuid_of("gpu0"): {"resources": {"VGPU": 1}}}}
    assert found["1.33"]["allocation_requests"] == found["1.12"]["allocation_requests"]
    assert found["1.34"]["allocation_requests"][0]["mappings"] == {"": [uuid_of("gpu0")]}
    vgpu, fpga = {"VGPU": {"capacity": 2, "used": 0}}, {"FPGA": {"capacity": 1, "used": 0}}
    shown = {version: body["provider_summaries"][uuid_of("gpu0")] for version, body in found.items()}
    assert shown["1.16"] == {"resources": vgpu}
    assert shown["1.17"] == shown["1.26"] == {"resources": vgpu, "traits": ["CUSTOM_GPU"]}
    assert shown["1.27"] == shown["1.28"] == {"resources": vgpu | fpga, "traits": ["CUSTOM_GPU"]}
    assert set(found["1.28"]["provider_summaries"]) == {uuid_of("gpu0"), uuid_of("gpu1")}
    assert set(found["1.29"]["provider_summaries"]) == {uuid_of("gpu0"), uuid_of("gpu1"), uuid_of("host")}


def test_before_1_29_candidates_use_one_provider_of_the_tree(database_url: str) -> None:
    query = "resources=VCPU:1,VGPU:1"
    found = in_all_versions(database_url, query, "1.28", "1.29")
    assert found["1.28"] == {"allocation_requests": [], "provider_summaries": {}}
    assert len(found["1.29"]["allocation_requests"]) == 2


def test_before_1_29_sharing_providers_serve_the_whole_tree(database_url: str) -> None:
    body = get_candidates(database_url, "resources=VGPU:1,DISK_GB:1", "1.28")
    assert [set(one["allocations"]) for one in body["allocation_requests"]] == [
        {uuid_of("gpu0"), uuid_of("disk")},
        {uuid_of("gpu1"), uuid_of("disk")},
    ]


def test_candidate_of_sharing_providers_only_is_listed_once(database_url: str) -> None:
    body = get_candidates(database_url, "resources=DISK_GB:500")
    assert [one["allocations"] for one in body["allocation_requests"]] == [
        {uuid_of("disk"): {"resources": {"DISK_GB": 500}}}
    ]
    assert set(body["provider_summaries"]) == {uuid_of("disk")}


def test_limit_prefers_different_trees_and_uses_first_value(database_url: str) -> None:
    async def scenario() -> None:
        async with placement(database_url, *ALL) as api:
            two = await api.candidates("resources=VCPU:1,DISK_GB:1&limit=2")
            used = {uuid for one in two["allocation_requests"] for uuid in one["allocations"]}
            assert {uuid_of("host"), uuid_of("plain")} <= used
            for query, count in (("limit=2&limit=1", 2), ("limit=99999999999999999999", 3), ("limit=3", 3)):
                found = await api.candidates(f"resources=VCPU:1,DISK_GB:1&{query}")
                assert len(found["allocation_requests"]) == count

    asyncio.run(scenario())


def test_responses_are_not_cacheable(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with placement(sqlite_url, *ALL) as api:
            old = await api.get("/allocation_candidates?resources=VCPU:1", "1.14")
            new = await api.get("/allocation_candidates?resources=VCPU:1", "1.15")
            assert "cache-control" not in old.headers
            assert new.headers["cache-control"] == "no-cache"
            assert new.headers["last-modified"].endswith("GMT")
            assert (await api.get("/allocation_candidates?resources=VCPU:1", "1.9")).status == 404
            assert (await api.get("/allocation_candidates?resources=VCPU:1", as_="member")).status == 403

    asyncio.run(scenario())


WRONG = [
    ("1.39", "", "At least one request group"),
    ("1.24", "", "'resources' is a required property"),
    ("1.39", "resources=", "Got: empty string."),
    ("1.39", "resources=VCPU", "Got: VCPU."),
    ("1.39", "resources=VCPU:1,", "Got: ."),
    ("1.39", "resources=VCPU:x", "Requested resource VCPU expected positive integer amount. Got: x."),
    ("1.39", "resources=VCPU:%D9%A3", "expected positive integer amount"),
    ("1.39", "resources=VCPU:0", "requires amount >= 1. Got: 0."),
    ("1.39", f"resources=VCPU:{'9' * 5000}", "requires amount <= 2147483647"),
    ("1.39", "resources=NOPE:1", "Invalid resource class in resources parameter"),
    ("1.39", "resources=VCPU:1&unknown=1", "'unknown' does not match any of the regexes"),
    ("1.24", "resources=VCPU:1&unknown=1", "'unknown' was unexpected"),
    ("1.15", "resources=VCPU:1&limit=1", "'limit' was unexpected"),
    ("1.39", "resources=VCPU:1&limit=0", "Failed validating 'pattern'"),
    (
        "1.39",
        "resources=VCPU:1&required=",
        "Expected 'required' parameter value of the form: HW_CPU_X86_VMX,!CUSTOM_MAGIC",
    ),
    ("1.39", "resources=VCPU:1&required=!", "Expected 'required' parameter value of the form"),
    ("1.21", "resources=VCPU:1&required=!CUSTOM_FAST", "of the form: HW_CPU_X86_VMX,CUSTOM_MAGIC. Got: !CUSTOM_FAST"),
    ("1.38", "resources=VCPU:1&required=in:CUSTOM_FAST", "only supported since microversion 1.39."),
    ("1.39", "resources=VCPU:1&required=in:!CUSTOM_FAST", "in: takes no forbidden traits"),
    ("1.39", "resources=VCPU:1&required=CUSTOM_NONE,CUSTOM_NO", "No such trait(s): CUSTOM_NO, CUSTOM_NONE."),
    ("1.39", "resources=VCPU:1&required=CUSTOM_FAST,!CUSTOM_FAST", "traits keys: required: (CUSTOM_FAST)"),
    ("1.39", "resources1=VCPU:1&required1=CUSTOM_FAST&required1=!CUSTOM_FAST", "traits keys: required1: (CUSTOM_FAST)"),
    ("1.39", "resources=VCPU:1&root_required=in:CUSTOM_FAST", "Expected 'root_required' parameter value of the form"),
    ("1.39", "resources=VCPU:1&root_required=CUSTOM_FAST&root_required=CUSTOM_FAST", "may be specified only once"),
    ("1.39", "resources=VCPU:1&root_required=CUSTOM_FAST,!CUSTOM_FAST", "found in root_required: CUSTOM_FAST"),
    ("1.39", "resources=VCPU:1&member_of=x", "Expected 'member_of' parameter to contain valid UUID(s)."),
    (
        "1.39",
        f"resources=VCPU:1&member_of={uuid_of('a')},{uuid_of('b')}",
        "must be prefixed with the 'in:' or '!in:' keyword",
    ),
    ("1.31", f"resources=VCPU:1&member_of=!{uuid_of('a')}", "Forbidden member_of parameters are not supported"),
    ("1.23", f"resources=VCPU:1&member_of={uuid_of('a')}&member_of={uuid_of('b')}", "Multiple member_of parameters"),
    ("1.39", "resources=VCPU:1&in_tree=x", "Expected 'in_tree' parameter to be a format of uuid"),
    ("1.39", "resources1=VCPU:1&resources2=VCPU:1", 'The "group_policy" parameter is required'),
    ("1.39", "resources=VCPU:1&group_policy=x", "'x' is not one of ['none', 'isolate']"),
    ("1.32", "resources_A=VCPU:1", "'resources_A' does not match any of the regexes"),
    ("1.39", "resources=VCPU:1&required_A=CUSTOM_FAST", "should be specified in `same_subtree` query param"),
    ("1.39", "required_A=CUSTOM_FAST&same_subtree=_A", "There must be at least one resources or resources[$S]"),
    ("1.39", "resources_A=VCPU:1&required=CUSTOM_FAST", "orphaned traits keys: required"),
    ("1.35", f"resources=VCPU:1&in_tree_A={uuid_of('a')}", "All request groups must specify resources."),
    ("1.39", "resources_A=VCPU:1&same_subtree=_A,", "Empty string (unsuffixed group)"),
    ("1.39", "resources_A=VCPU:1&same_subtree=_B", "Real suffixes should be specified in `same_subtree`: _B"),
]


@pytest.fixture(scope="module")
def errors_by_query(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[int, str]]:
    """The responses to all invalid queries, requested once."""
    path = tmp_path_factory.mktemp("errors_by_query") / "kilonova.db"
    shutil.copy(sqlite_template(), path)

    async def scenario() -> dict[tuple[str, str], tuple[int, str]]:
        async with placement(f"sqlite://{path}", *ALL) as api:
            return {(version, query): await _get_error(api, version, query) for version, query, _ in WRONG}

    return asyncio.run(scenario())


async def _get_error(api: Placement, version: str, query: str) -> tuple[int, str]:
    response = await api.get(f"/allocation_candidates?{query}", version)
    return response.status, response.json()["errors"][0]["detail"] if response.status != 200 else ""


@pytest.mark.parametrize(("version", "query", "message"), WRONG)
def test_invalid_query_error(
    errors_by_query: dict[tuple[str, str], tuple[int, str]], version: str, query: str, message: str
) -> None:
    status, detail = errors_by_query[version, query]
    assert status == 400
    assert message in detail
    assert len(detail) < 1000
