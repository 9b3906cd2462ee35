"""Responses compared with the samples of the public API reference, at the version of each sample.

A case has a sample's file and a request. It runs at the lowest version of the sample.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kilonova.compute.server_groups import model as server_groups
from kilonova.compute.zones.model import create_zone
from tests.compute.migrations.support import put_move
from tests.samples.shape import differences
from tests.support import run
from tests.support.cloud import ADMIN, DEMO, OTHER, Cloud, cloud, put_server

SAMPLES = Path(__file__).parents[3] / "shared/compute-api/samples"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@here"
SPECS = {"extra_specs": {"hw:cpu_policy": "shared", "hw:numa_nodes": "1"}}
GROUP = "5bbcc3c4-1da2-4437-a48a-66f15b1b13f9"
SERVER = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
SINCE, BEFORE = "changes-since=2000-01-01T00:00:00Z", "changes-before=2000-01-01T00:00:00Z"
SERVICE = {"host": "host1", "binary": "nova-compute"}

pytestmark = pytest.mark.skipif(not SAMPLES.exists(), reason="needs the published samples in ../shared")


class Case(NamedTuple):
    sample: str
    method: str
    path: str
    body: Any = None
    as_: str = "admin"
    root: str = "/compute/v2.1"
    # Keys that only the response or only the sample has, because their objects differ.
    except_for: tuple[str, ...] = ()


def cases_at_versions(
    sample: str, versions: str, method: str, path: str, body: Any = None, **options: Any
) -> list[Case]:
    """The same request at each version that has its own sample; `-` is the sample of 2.1."""
    folder, _, file = sample.partition("/")
    names = [f"{folder}/{'' if version == '-' else f'v{version}/'}{file}" for version in versions.split()]
    return [Case(name, method, path, body, **options) for name in names]


CASES = [
    Case("versions/versions-get-resp.json", "GET", "/", root="/compute"),
    Case("versions/v21-version-get-resp.json", "GET", "/v2.1", root="/compute"),
    Case("versions/v2-version-get-resp.json", "GET", "/v2", root="/compute"),
    Case("extension-info/extensions-list-resp.json", "GET", "/extensions"),
    Case("extension-info/extensions-get-resp.json", "GET", "/extensions/os-agents"),
    *cases_at_versions(
        "os-server-groups/server-groups-post-resp.json", "- 2.13 2.64", "POST", "/os-server-groups", "request"
    ),
    *cases_at_versions(
        "os-server-groups/server-groups-get-resp.json", "- 2.13 2.64", "GET", f"/os-server-groups/{GROUP}"
    ),
    *cases_at_versions("os-server-groups/server-groups-list-resp.json", "- 2.13 2.64", "GET", "/os-server-groups"),
    *cases_at_versions("flavors/flavors-list-resp.json", "- 2.55 2.61 2.75 2.102", "GET", "/flavors"),
    *cases_at_versions("flavors/flavors-detail-resp.json", "- 2.55 2.61 2.75 2.102", "GET", "/flavors/detail"),
    *cases_at_versions("flavors/flavor-get-resp.json", "- 2.55", "GET", "/flavors/1"),
    *cases_at_versions("flavors/flavor-get-resp.json", "2.61 2.75 2.102", "GET", "/flavors/specified"),
    *cases_at_versions(
        "flavor-manage/flavor-create-post-resp.json", "- 2.55 2.61 2.75 2.102", "POST", "/flavors", "request"
    ),
    *cases_at_versions("flavor-manage/flavor-update-resp.json", "2.55 2.61 2.75 2.102", "PUT", "/flavors/1", "request"),
    Case("flavor-access/flavor-access-list-resp.json", "GET", "/flavors/private/os-flavor-access"),
    Case(
        "flavor-access/flavor-access-add-tenant-resp.json",
        "POST",
        "/flavors/private/action",
        {"addTenantAccess": {"tenant": OTHER}},
    ),
    Case(
        "flavor-access/flavor-access-remove-tenant-resp.json",
        "POST",
        "/flavors/private/action",
        {"removeTenantAccess": {"tenant": DEMO}},
    ),
    Case("flavor-extra-specs/flavor-extra-specs-list-resp.json", "GET", "/flavors/specified/os-extra_specs"),
    Case("flavor-extra-specs/flavor-extra-specs-create-resp.json", "POST", "/flavors/1/os-extra_specs", "request"),
    Case(
        "flavor-extra-specs/flavor-extra-specs-get-resp.json", "GET", "/flavors/specified/os-extra_specs/hw:numa_nodes"
    ),
    Case(
        "flavor-extra-specs/flavor-extra-specs-update-resp.json",
        "PUT",
        "/flavors/specified/os-extra_specs/hw:numa_nodes",
        "request",
    ),
    *cases_at_versions("os-keypairs/keypairs-list-resp.json", "- 2.2 2.10", "GET", "/os-keypairs"),
    Case("os-keypairs/v2.35/keypairs-list-resp.json", "GET", "/os-keypairs?limit=1"),
    Case("os-keypairs/v2.35/keypairs-list-user2-resp.json", "GET", "/os-keypairs?limit=1&user_id=admin-id"),
    *cases_at_versions("os-keypairs/keypairs-get-resp.json", "- 2.2 2.10", "GET", "/os-keypairs/key"),
    *cases_at_versions(
        "os-keypairs/keypairs-import-post-resp.json", "- 2.2 2.10 2.92", "POST", "/os-keypairs", "request"
    ),
    *cases_at_versions("os-keypairs/keypairs-post-resp.json", "- 2.2 2.10 2.35", "POST", "/os-keypairs", "request"),
    Case("os-availability-zone/availability-zone-list-resp.json", "GET", "/os-availability-zone"),
    Case(
        "os-availability-zone/availability-zone-detail-resp.json",
        "GET",
        "/os-availability-zone/detail",
        # The keys below this path are host names.
        except_for=("hosts.",),
    ),
    *cases_at_versions("os-services/services-list-get-resp.json", "- 2.11 2.53", "GET", "/os-services"),
    *cases_at_versions("os-services/service-disable-put-resp.json", "- 2.11", "PUT", "/os-services/disable", SERVICE),
    *cases_at_versions("os-services/service-enable-put-resp.json", "- 2.11", "PUT", "/os-services/enable", SERVICE),
    *cases_at_versions(
        "os-services/service-disable-log-put-resp.json", "- 2.11", "PUT", "/os-services/disable-log-reason", "request"
    ),
    Case("os-services/v2.11/service-force-down-put-resp.json", "PUT", "/os-services/force-down", "request"),
    *cases_at_versions("os-services/service-disable-put-resp.json", "2.53", "PUT", "/os-services/{service}", "request"),
    *cases_at_versions("os-services/service-enable-put-resp.json", "2.53", "PUT", "/os-services/{service}", "request"),
    *cases_at_versions(
        "os-services/service-disable-log-put-resp.json", "2.53", "PUT", "/os-services/{service}", "request"
    ),
    *cases_at_versions(
        "os-services/service-force-down-put-resp.json", "2.53", "PUT", "/os-services/{service}", "request"
    ),
    Case("os-hosts/hosts-list-resp.json", "GET", "/os-hosts"),
    Case("os-hosts/host-get-resp.json", "GET", "/os-hosts/host1"),
    Case("os-hosts/host-put-maintenance-resp.json", "PUT", "/os-hosts/host1", "request"),
    *cases_at_versions("os-hypervisors/hypervisors-list-resp.json", "- 2.28", "GET", "/os-hypervisors"),
    *cases_at_versions("os-hypervisors/hypervisors-list-resp.json", "2.33 2.53 2.88", "GET", "/os-hypervisors?limit=1"),
    *cases_at_versions(
        "os-hypervisors/hypervisors-detail-resp.json",
        "- 2.28",
        "GET",
        "/os-hypervisors/detail",
        except_for=("cpu_info.",),
    ),
    *cases_at_versions(
        "os-hypervisors/hypervisors-detail-resp.json",
        "2.33 2.53 2.88",
        "GET",
        "/os-hypervisors/detail?limit=1",
        except_for=("cpu_info.",),
    ),
    *cases_at_versions(
        "os-hypervisors/hypervisors-show-resp.json", "- 2.28", "GET", "/os-hypervisors/1", except_for=("cpu_info.",)
    ),
    *cases_at_versions(
        "os-hypervisors/hypervisors-show-resp.json",
        "2.53 2.88",
        "GET",
        "/os-hypervisors/{hypervisor}",
        except_for=("cpu_info.",),
    ),
    *cases_at_versions(
        "os-hypervisors/hypervisors-show-with-servers-resp.json",
        "2.53 2.88",
        "GET",
        "/os-hypervisors/{hypervisor}?with_servers=1",
        except_for=("cpu_info.",),
    ),
    *cases_at_versions(
        "os-hypervisors/hypervisors-detail-with-servers-resp.json",
        "2.53 2.88",
        "GET",
        "/os-hypervisors/detail?hypervisor_hostname_pattern=host1&with_servers=1",
        except_for=("cpu_info.",),
    ),
    *cases_at_versions(
        "os-hypervisors/hypervisors-statistics-resp.json", "- 2.28 2.53", "GET", "/os-hypervisors/statistics"
    ),
    *cases_at_versions("os-hypervisors/hypervisors-search-resp.json", "- 2.28", "GET", "/os-hypervisors/host1/search"),
    *cases_at_versions(
        "os-hypervisors/hypervisors-search-resp.json",
        "2.53 2.88",
        "GET",
        "/os-hypervisors?hypervisor_hostname_pattern=host1",
    ),
    *cases_at_versions(
        "os-hypervisors/hypervisors-with-servers-resp.json", "- 2.28", "GET", "/os-hypervisors/host1/servers"
    ),
    *cases_at_versions(
        "os-hypervisors/hypervisors-without-servers-resp.json", "- 2.28", "GET", "/os-hypervisors/host2/servers"
    ),
    *cases_at_versions(
        "os-hypervisors/hypervisors-with-servers-resp.json",
        "2.53 2.88",
        "GET",
        "/os-hypervisors?hypervisor_hostname_pattern=host1&with_servers=1",
    ),
    *cases_at_versions("os-hypervisors/hypervisors-uptime-resp.json", "- 2.28", "GET", "/os-hypervisors/1/uptime"),
    *cases_at_versions(
        "os-hypervisors/hypervisors-uptime-resp.json", "2.53", "GET", "/os-hypervisors/{hypervisor}/uptime"
    ),
    *cases_at_versions("os-migrations/migrations-get.json", "- 2.23 2.59 2.80", "GET", "/os-migrations"),
    *cases_at_versions("os-migrations/migrations-get-with-limit.json", "2.59 2.80", "GET", "/os-migrations?limit=1"),
    *cases_at_versions(
        "os-migrations/migrations-get-with-marker.json", "2.59 2.80", "GET", "/os-migrations?marker={migration}"
    ),
    *cases_at_versions(
        "os-migrations/migrations-get-with-changes-since.json", "2.59 2.80", "GET", f"/os-migrations?{SINCE}"
    ),
    *cases_at_versions(
        "os-migrations/migrations-get-with-changes-before.json", "2.66 2.80", "GET", f"/os-migrations?{BEFORE}"
    ),
    Case("os-migrations/v2.80/migrations-get-with-user-or-project-id.json", "GET", f"/os-migrations?project_id={DEMO}"),
    *cases_at_versions(
        "server-migrations/migrations-index.json", "2.23 2.59 2.80", "GET", f"/servers/{SERVER}/migrations"
    ),
    *cases_at_versions(
        "server-migrations/migrations-get.json", "2.23 2.59 2.80", "GET", f"/servers/{SERVER}/migrations/1"
    ),
    *cases_at_versions("os-aggregates/aggregates-list-get-resp.json", "- 2.41 2.81", "GET", "/os-aggregates"),
    *cases_at_versions("os-aggregates/aggregates-get-resp.json", "- 2.41 2.81", "GET", "/os-aggregates/1"),
    *cases_at_versions("os-aggregates/aggregate-post-resp.json", "- 2.41 2.81", "POST", "/os-aggregates", "request"),
    *cases_at_versions(
        "os-aggregates/aggregate-update-post-resp.json", "- 2.41 2.81", "PUT", "/os-aggregates/1", "request"
    ),
    *cases_at_versions(
        "os-aggregates/aggregates-add-host-post-resp.json",
        "- 2.41 2.81",
        "POST",
        "/os-aggregates/1/action",
        {"add_host": {"host": "host4"}},
    ),
    *cases_at_versions(
        "os-aggregates/aggregates-remove-host-post-resp.json",
        "- 2.41 2.81",
        "POST",
        "/os-aggregates/1/action",
        {"remove_host": {"host": "host3"}},
    ),
    *cases_at_versions(
        "os-aggregates/aggregates-metadata-post-resp.json",
        "- 2.41 2.81",
        "POST",
        "/os-aggregates/1/action",
        {"set_metadata": {"metadata": {"key": "value"}}},
    ),
    *cases_at_versions("limits/limit-get-resp.json", "- 2.36 2.39 2.57", "GET", "/limits"),
    *cases_at_versions("os-quota-sets/quotas-show-get-resp.json", "- 2.36 2.57", "GET", "/os-quota-sets/{project}"),
    *cases_at_versions(
        "os-quota-sets/user-quotas-show-get-resp.json", "- 2.36 2.57", "GET", "/os-quota-sets/{project}?user_id=1"
    ),
    *cases_at_versions(
        "os-quota-sets/quotas-show-defaults-get-resp.json", "- 2.36 2.57", "GET", "/os-quota-sets/{project}/defaults"
    ),
    *cases_at_versions(
        "os-quota-sets/quotas-show-detail-get-resp.json", "- 2.36 2.57", "GET", "/os-quota-sets/{project}/detail"
    ),
    *cases_at_versions(
        "os-quota-sets/quotas-update-post-resp.json", "- 2.36 2.57", "PUT", "/os-quota-sets/{project}", "request"
    ),
    *cases_at_versions(
        "os-quota-sets/quotas-update-force-post-resp.json",
        "- 2.36 2.57",
        "PUT",
        "/os-quota-sets/{project}",
        "request",
    ),
    *cases_at_versions(
        "os-quota-sets/user-quotas-update-post-resp.json",
        "- 2.36 2.57",
        "PUT",
        "/os-quota-sets/{project}?user_id=1",
        "request",
    ),
    *cases_at_versions(
        "os-quota-class-sets/quota-classes-show-get-resp.json", "- 2.50 2.57", "GET", "/os-quota-class-sets/default"
    ),
    *cases_at_versions(
        "os-quota-class-sets/quota-classes-update-post-resp.json",
        "- 2.50 2.57",
        "PUT",
        "/os-quota-class-sets/default",
        "request",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.sample.removesuffix(".json") for case in CASES])
def test_response_has_shape_of_sample(sqlite_url: str, case: Case) -> None:
    async def scenario() -> Any:
        async with cloud(sqlite_url, hosts=4, process_host="ctl") as c:
            await create_objects(c)
            found = await c.db.fetch_one(
                "SELECT h.uuid, s.uuid AS service FROM hypervisors h JOIN services s ON s.id = h.service_id"
                " WHERE h.host = 'host1'"
            )
            assert found is not None
            migration = await c.db.fetch_value("SELECT operation_id FROM moves ORDER BY id DESC LIMIT 1")
            path = case.path.format(
                hypervisor=found["uuid"], service=found["service"], project=DEMO, migration=migration
            )
            options = {"as_": case.as_, "root": case.root, "version": version_of(case.sample)}
            response = await c.request(case.method, path, json=body_of(case), **options)
            assert response.status < 300, response.body
            return response.json()

    sample = json.loads((SAMPLES / case.sample).read_text())
    found = [each for each in differences(sample, run(scenario())) if not any(x in each for x in case.except_for)]
    assert found == []


async def create_objects(c: Cloud) -> None:
    """Create the objects of the samples."""
    await put_server(c.db, SERVER, host="host1")
    await put_move(c, SERVER, step="migrate guest", transfer={"memory_total": 2, "disk_total": 1})
    await put_move(c, SERVER, "resize", step="park guest", at=1e9)
    async with c.db.transaction() as tx:
        await create_zone(tx, "london", ["host3"])
        await tx.execute("UPDATE hypervisors SET booted_at = 1")
        group = server_groups.ServerGroup(GROUP, ADMIN, "admin-id", "test", "anti-affinity", 3, 1.0)
        await server_groups.create(tx, group)
    for name in ("specified", "private"):
        flavor = {"name": name, "id": name, "ram": 1, "vcpus": 1, "disk": 1}
        await c.post("/flavors", {"flavor": {**flavor, "os-flavor-access:is_public": name != "private"}}, as_="admin")
    await c.post("/flavors/specified/os-extra_specs", SPECS, as_="admin")
    await c.post("/flavors/private/action", {"addTenantAccess": {"tenant": DEMO}}, as_="admin")
    for name in ("key", "key2"):
        await c.post("/os-keypairs", {"keypair": {"name": name, "public_key": KEY}}, as_="admin")


def version_of(sample: str) -> str:
    middle = sample.split("/")[1]
    return middle.removeprefix("v") if middle.startswith("v2.") else "2.1"


def body_of(case: Case) -> Any:
    """The body; `request` is the sample of the matching request."""
    if case.body != "request":
        return case.body
    file = SAMPLES / case.sample.replace("-resp.json", "-req.json")
    return json.loads(file.read_text())
