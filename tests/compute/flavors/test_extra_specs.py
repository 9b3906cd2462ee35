"""Extra specs of flavors: routes and validation."""

from __future__ import annotations

import pytest

from kilonova.compute.flavors.extra_spec_validation import check
from kilonova.http.errors import BadRequest
from kilonova.scheduler import host_attributes
from tests.support import run
from tests.support.cloud import cloud, fault
from tests.support.route_coverage import proves

SPECS = "/flavors/1/os-extra_specs"


@proves(
    "GET /flavors/{flavor_id}/os-extra_specs",
    "POST /flavors/{flavor_id}/os-extra_specs",
    "GET /flavors/{flavor_id}/os-extra_specs/{key}",
    "PUT /flavors/{flavor_id}/os-extra_specs/{key}",
    "DELETE /flavors/{flavor_id}/os-extra_specs/{key}",
)
def test_create_update_delete(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            given = {"hw:cpu_policy": "shared", "hw:numa_nodes": "1"}
            assert (await c.post(SPECS, {"extra_specs": given}, as_="admin")).json() == {"extra_specs": given}
            added = await c.post(SPECS, {"extra_specs": {"mine": 3}}, as_="admin")
            assert added.json() == {"extra_specs": {"mine": "3"}}
            assert (await c.get(SPECS)).json() == {"extra_specs": {**given, "mine": "3"}}
            assert (await c.get("/flavors/1", version="2.61")).json()["flavor"]["extra_specs"]["mine"] == "3"
            assert (await c.get(f"{SPECS}/mine")).json() == {"mine": "3"}
            assert (await c.put(f"{SPECS}/mine", {"mine": "4"}, as_="admin")).json() == {"mine": "4"}
            assert (await c.get(f"{SPECS}/mine")).json() == {"mine": "4"}
            gone = await c.delete(f"{SPECS}/mine", as_="admin")
            assert (gone.status, gone.body) == (200, b"")
            assert (await c.get(f"{SPECS}/mine")).status == 404
            assert (await c.delete(f"{SPECS}/mine", as_="admin")).status == 404
            assert (await c.get(SPECS)).json() == {"extra_specs": given}

    run(scenario())


def test_refused_requests(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            mismatch = await c.put(f"{SPECS}/mine", {"yours": "4"}, as_="admin")
            assert "mismatch" in fault(mismatch)[2]
            assert (await c.put(f"{SPECS}/mine", {"mine": "4", "more": "1"}, as_="admin")).status == 400
            assert (await c.post(SPECS, {"extra_specs": {"a/b": "1"}}, as_="admin")).status == 400
            assert (await c.post(SPECS, {"extra_specs": {"a": None}}, as_="admin")).status == 400
            assert (await c.post(SPECS, {"extra_specs": {"a": "x" * 256}}, as_="admin")).status == 400
            assert (await c.post("/flavors/no/os-extra_specs", {"extra_specs": {}}, as_="admin")).status == 404
            assert (await c.post(SPECS, {"extra_specs": {"a": "1"}}, as_="member")).status == 403
            assert (await c.get(SPECS)).json() == {"extra_specs": {}}

    run(scenario())


def test_known_namespaces_are_validated_from_2_86(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            wrong = {"extra_specs": {"hw:cpu_polciy": "shared"}}
            assert (await c.post(SPECS, wrong, as_="admin", version="2.85")).status == 200
            refused = await c.post(SPECS, wrong, as_="admin", version="2.86")
            assert "hw:cpu_polciy" in fault(refused)[2]
            refused = await c.put(f"{SPECS}/hw:numa_nodes", {"hw:numa_nodes": "none"}, as_="admin", version="2.86")
            assert fault(refused)[0] == 400

    run(scenario())


@pytest.mark.parametrize(
    "key, value",
    [
        ("anything", "goes"),
        ("mine:own", "too"),
        ("hw:cpu_policy", "dedicated"),
        ("hw:numa_nodes", "2"),
        ("hw:numa_cpus.1", "0-3,^2"),
        ("hw:mem_page_size", "2MB"),
        ("hw:mem_page_size", "large"),
        ("hw:hide_hypervisor_id", "True"),
        ("hw:cpu_realtime_mask", "^0-1"),
        ("hw_rng:rate_bytes", "1000"),
        ("os:secure_boot", "required"),
        ("quota:cpu_quota", "-1"),
        ("quota:disk_read_iops_sec", "100"),
        ("quota:vif_inbound_average", "1"),
        ("resources:VCPU", "0"),
        ("resources1:CUSTOM_GOLD", "2"),
        ("resources_DISK:DISK_GB", "2"),
        ("trait:HW_CPU_X86_AVX", "required"),
        ("trait_X:CUSTOM_A", "forbidden"),
        ("group_policy", "isolate"),
        ("same_subtree", "_A,_B"),
        ("aggregate_instance_extra_specs:ssd", "true"),
        *((f"capabilities:{name}", "s== x") for name in sorted(host_attributes.NAMES)),
        ("capabilities:cpu_info:features", "<in> avx"),
        ("capabilities:cpu_info:topology:sockets", ">= 2"),
        ("capabilities:hypervisor_type", "<or> QEMU <or> sim"),
        ("capabilities:vcpus", "8"),
        ("capabilities:num_instances", "<= 8"),
        ("accel:device_profile", "gpu"),
    ],
)
def test_valid_specs(key: str, value: str) -> None:
    check({key: value})


@pytest.mark.parametrize(
    "key, value",
    [
        ("hw:cpu_polciy", "dedicated"),
        ("hw:cpu_policy", "sometimes"),
        ("capabilities:hypervisor_typ", "QEMU"),
        ("capabilities:cpu_info:topology:planes", "2"),
        ("capabilities:cpu_info:", "2"),
        ("capabilities:", "2"),
        ("hw:numa_nodes", "0"),
        ("hw:numa_nodes", "one"),
        ("hw:numa_cpus.x", "0"),
        ("hw:mem_page_size", "big"),
        ("hw:hide_hypervisor_id", "perhaps"),
        ("os:secure_boot", "yes"),
        ("quota:cpu_quota", "some"),
        ("quota:nothing", "1"),
        ("resources:VCPU", "many"),
        ("resources:VCPU", "-1"),
        ("resources:VCPU", "12345678901"),
        ("resources:lower", "1"),
        ("resources:NO_SUCH_CLASS", "1"),
        ("resources2:CUSTOM_", "1"),
        ("trait:NO_SUCH_TRAIT", "required"),
        ("trait1:CUSTOM_A", "true"),
        ("same_subtree", "_A;;"),
        ("trait:HW_CPU_X86_AVX", "wanted"),
        ("group_policy", "spread"),
    ],
)
def test_invalid_specs(key: str, value: str) -> None:
    with pytest.raises(BadRequest, match=key):
        check({key: value})
