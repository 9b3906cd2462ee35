"""Who may call the routes of the Compute API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.compute import build
from kilonova.ids import new_id
from kilonova.network import build as build_network
from kilonova.policy.compute import RULES
from kilonova.volume import build as build_volume
from tests.authorization.support import TOKEN_OF, Comparison, Part, caller_of, check_readers_write_nothing, check_rules
from tests.compute.server_shares.support import insert_server_share, make_share
from tests.fuzz.resources import KEY, ApiCaller, create_cloud_resources, create_project_resources, wait_until_available
from tests.support import run
from tests.support.cloud import DEMO, OTHER, put_server
from tests.support.full_cloud import FullCloud, full_cloud

OTHER_USER = "other-id"
MISSING = {
    "GET /os-console-auth-tokens/{token}",
    # No live migration is under way.
    "GET /servers/{server_id}/migrations/{migration_id}",
    "DELETE /servers/{server_id}/migrations/{migration_id}",
    "POST /servers/{server_id}/migrations/{migration_id}/action#force_complete",
}
NOT_CALLED = {
    "compute:servers:resize:cross_cell": "there are no cells",
    "compute:server:topology:host:index": "guests have no NUMA cells",
    "os_compute_api:servers:show:host_status:unknown-only": "host_status is shown or not, whatever it is",
}
PRIVATE_FLAVOR = [key for key in build().routes if "os-flavor-access" in key or "TenantAccess" in key]
BY_NAME = ["GET /os-hypervisors/{hypervisor_id}/search", "GET /os-hypervisors/{hypervisor_id}/servers"]


def bodies(names: Mapping[str, Any]) -> dict[str, Any]:
    host = names["os-hosts/host"]
    service = {"host": host, "binary": "nova-compute"}
    action = "POST /servers/{server_id}/action#"
    return {
        "GET /kilonova-fit": {"flavor": "1"},
        "PUT /os-quota-sets/{project_id}": {"quota_set": {"key_pairs": 100}},
        "PUT /os-quota-class-sets/{name}": {"quota_class_set": {"key_pairs": 100}},
        f"{action}addSecurityGroup": {"addSecurityGroup": {"name": "g"}},
        f"{action}removeSecurityGroup": {"removeSecurityGroup": {"name": "default"}},
        f"{action}evacuate": {"evacuate": {}},
        "POST /images/{image_id}/metadata": {"metadata": {"key": "z"}},
        "POST /os-floating-ips": {"pool": "outside"},
        "POST /os-security-group-rules": {
            "security_group_rule": {
                "parent_group_id": names["parent_group_id"],
                "ip_protocol": "tcp",
                "from_port": 1,
                "to_port": 2,
                "cidr": "10.0.0.0/24",
            }
        },
        f"{action}os-migrateLive": {"os-migrateLive": {"host": None, "block_migration": "auto"}},
        f"{action}migrate": {"migrate": None},
        "POST /servers/{server_id}/os-interface": {"interfaceAttachment": {}},
        "PUT /flavors/{flavor_id}/os-extra_specs/{key}": {"key": "y"},
        "PUT /servers/{server_id}/metadata/{key}": {"meta": {"key": "y"}},
        "PUT /images/{image_id}/metadata/{key}": {"meta": {"key": "y"}},
        **{
            f"PUT /os-services/{verb}": {**service, "forced_down": False, "disabled_reason": "x"}
            for verb in ("enable", "disable", "disable-log-reason", "force-down")
        },
        **{
            f"POST /os-aggregates/{{aggregate_id}}/action#{verb}": {verb: {"host": host}}
            for verb in ("add_host", "remove_host")
        },
    }


async def create_server_with_share(c: FullCloud, project_id: str) -> dict[str, str]:
    """A server with a share. Its other actions are refused, so it serves the routes of shares only."""
    server_id, share_id = new_id(), await make_share(c, as_="member" if project_id == DEMO else "other")
    await put_server(c.db, server_id, project_id=project_id, vm_state="stopped", host="sim-001")
    async with c.db.transaction() as tx:
        await insert_server_share(tx, server_id, share_id, "attached")
    return {"server_id": server_id, "share_id": share_id}


async def create_special_servers(c: FullCloud) -> dict[str, str]:
    found = {"locked": new_id(), "shelved": new_id(), "volume-backed": new_id()}
    await put_server(c.db, found["locked"], locked=True, locked_by="somebody", host="sim-001")
    await put_server(c.db, found["shelved"], vm_state="shelved_offloaded")
    await put_server(c.db, found["volume-backed"], image_id=None, host="sim-001")
    return found


def parts(names: Mapping[str, Any], special: Mapping[str, str], outside: str) -> list[Part]:
    prefix, action = "os_compute_api:", "POST /servers/{server_id}/action#"
    certificates = {"trusted_image_certificates": ["one"]}
    volume = {"boot_index": -1, "source_type": "volume", "destination_type": "volume", "uuid": names["volume_id"]}

    def create(rule: str, **values: Any) -> Part:
        server = {"name": "s", "flavorRef": "1", "imageRef": names["imageRef"], "networks": "none", **values}
        return Part(rule, "POST /servers", {"server": server})

    forced = {"name": "s", "flavorRef": "1", "imageRef": names["imageRef"], "availability_zone": "nova:sim-001"}
    return [
        Part(f"{prefix}servers:create:forced_host", "POST /servers", {"server": forced}, version="2.1"),
        create("compute:servers:create:requested_destination", host="sim-001"),
        create(f"{prefix}servers:create:requested_destination", hypervisor_uuid=names["hypervisor_id"]),
        create(f"{prefix}servers:create:attach_network", networks=[{"uuid": names["os-networks/id"]}]),
        create("network:attach_external_network", networks=[{"uuid": outside}]),
        create(f"{prefix}servers:create:attach_volume", block_device_mapping_v2=[volume]),
        create(f"{prefix}servers:create:trusted_certs", **certificates),
        create(f"{prefix}servers:create:zero_disk_flavor", flavorRef="zero"),
        Part(f"{prefix}limits:other_project", "GET /limits", query=f"?tenant_id={OTHER}", of_other=True),
        Part(
            f"{prefix}os-lock-server:unlock:unlock_override",
            f"{action}unlock",
            {"unlock": None},
            names={"server_id": special["locked"]},
        ),
        Part(f"{prefix}os-migrate-server:migrate:host", f"{action}migrate", {"migrate": {"host": "sim-002"}}),
        Part(
            f"{prefix}os-migrate-server:migrate_live:host",
            f"{action}os-migrateLive",
            {"os-migrateLive": {"host": "sim-002", "block_migration": "auto"}},
        ),
        Part(
            f"{prefix}os-server-groups:index:all_projects", "GET /os-server-groups", query="?all_projects=1", shown=True
        ),
        Part(
            f"{prefix}os-shelve:unshelve_to_host",
            f"{action}unshelve",
            {"unshelve": {"host": "sim-001"}},
            names={"server_id": special["shelved"]},
        ),
        Part(
            f"{prefix}os-volumes-attachments:swap",
            "PUT /servers/{server_id}/os-volume_attachments/{volume_id}",
            {"volumeAttachment": {"volumeId": names["os-volumes/volume_id"]}},
        ),
        Part(
            f"{prefix}servers:create_image:allow_volume_backed",
            f"{action}createImage",
            {"createImage": {"name": "i"}},
            names={"server_id": special["volume-backed"]},
        ),
        Part(f"{prefix}servers:index:get_all_tenants", "GET /servers", query="?all_tenants=1"),
        Part(f"{prefix}servers:detail:get_all_tenants", "GET /servers/detail", query="?all_tenants=1"),
        Part(
            f"{prefix}servers:rebuild:trusted_certs",
            f"{action}rebuild",
            {"rebuild": {"imageRef": names["imageRef"], **certificates}},
        ),
    ]


async def create_objects(c: FullCloud, project_id: str, outside: str, octet: int) -> dict[str, Any]:
    as_ = f"admin@{project_id}"
    names = await create_project_resources(c, as_)
    network, volumes = ApiCaller(c, build_network(), as_), ApiCaller(c, build_volume(), as_)
    private = await network.make("/v2.0/networks", "network", name="n")
    await network.make("/v2.0/subnets", "subnet", network_id=private["id"], cidr=f"10.{octet}.0.0/24", ip_version=4)
    floating = await network.make("/v2.0/floatingips", "floatingip", floating_network_id=outside)
    rule = await network.make(
        "/v2.0/security-group-rules",
        "security_group_rule",
        security_group_id=names["parent_group_id"],
        direction="ingress",
    )
    spare = await volumes.make("/v3/volumes", "volume", "3.71", name="spare", size=1)
    await wait_until_available(volumes, f"/v3/volumes/{spare['id']}", "volume")
    snapshot = await volumes.make("/v3/snapshots", "snapshot", "3.71", name="s", volume_id=spare["id"])
    await wait_until_available(volumes, f"/v3/snapshots/{snapshot['id']}", "snapshot")
    return {
        **names,
        "os-networks/id": private["id"],
        "os-tenant-networks/id": private["id"],
        "os-floating-ips/id": floating["id"],
        "address": floating["floating_ip_address"],
        "os-security-group-rules/id": rule["id"],
        "os-volumes/volume_id": spare["id"],
        "snapshot_id": snapshot["id"],
        "networks": "none",
        "networkId": c.network_id,
        "os-volumes_boot/server_id": names["server_id"],
        "tenant_id": project_id,
    }


def test_answers_match_the_page(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            admin = ApiCaller(c, build_network())
            outside = (await admin.make("/v2.0/networks", "network", name="outside", **{"router:external": True}))["id"]
            await admin.make("/v2.0/subnets", "subnet", network_id=outside, cidr="10.98.0.0/24", ip_version=4)
            shared = await create_cloud_resources(c)
            compute = ApiCaller(c, build())
            for path, body in (
                ("/flavors/1/os-extra_specs", {"extra_specs": {"key": "x"}}),
                (f"/flavors/{shared['flavor_id']}/action", {"addTenantAccess": {"tenant": DEMO}}),
                (f"/os-aggregates/{shared['aggregate_id']}/action", {"add_host": {"host": shared["os-hosts/host"]}}),
            ):
                assert (await compute("POST", f"/v2.1{path}", None, body)).status == 200
            zero = {"name": "zero", "id": "zero", "ram": 64, "vcpus": 1, "disk": 0}
            await compute.make("/v2.1/flavors", "flavor", **zero)
            private, by_name = {"flavor_id": shared["flavor_id"]}, {"hypervisor_id": "sim"}
            shared |= {"flavor_id": "1"}
            own = {**shared, **await create_objects(c, DEMO, outside, 90)}
            other = {**shared, **await create_objects(c, OTHER, outside, 91)}
            for as_ in {*TOKEN_OF.values(), "other"}:
                key = {"name": "key", "public_key": KEY}
                await ApiCaller(c, build(), as_)("POST", "/v2.1/os-keypairs", None, {"keypair": key})
            compared = Comparison(
                build(),
                c.services,
                caller_of(c, build()),
                own,
                {**other, "user_id": OTHER_USER},
                bodies,
                parts=parts(own, await create_special_servers(c), outside),
                missing=MISSING,
                special={
                    **dict.fromkeys(
                        (key for key in build().routes if "/shares" in key),
                        (await create_server_with_share(c, DEMO), await create_server_with_share(c, OTHER)),
                    ),
                    **dict.fromkeys(PRIVATE_FLAVOR, (private, private)),
                    **dict.fromkeys(BY_NAME, (by_name, by_name)),
                },
                other_queries={
                    key: f"?user_id={OTHER_USER}"
                    for key in build().routes
                    if "/os-keypairs" in key and not key.startswith("POST")
                },
            )
            await compared.run()
            assert not compared.wrong, "\n".join(compared.wrong)
            check_rules(compared, RULES, NOT_CALLED)

    run(scenario())


def test_readers_write_nothing() -> None:
    check_readers_write_nothing(
        build(), dict.fromkeys(("POST /os-keypairs", "DELETE /os-keypairs/{name}"), "key pairs belong to users")
    )
