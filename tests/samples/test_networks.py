"""Deprecated network, floating IP and security group APIs, and usage audits, compared with the published samples."""

from __future__ import annotations

import pytest

from tests.compute.test_floating_ips import ADDRESSES, POOLS
from tests.compute.test_security_groups import GROUPS, RULES
from tests.compute.test_usage_audits import set_created_at
from tests.samples.test_samples import SAMPLES
from tests.samples.test_volumes import assert_same_shape, sample, with_existing_ids
from tests.support import run
from tests.support.cloud import cloud
from tests.support.full_cloud import full_cloud

pytestmark = pytest.mark.skipif(not SAMPLES.exists(), reason="needs the published samples in ../shared")


def test_networks_and_floating_ips(sqlite_url: str) -> None:
    networks, addresses = SAMPLES / "os-networks", SAMPLES / "os-floating-ips"

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=0) as c:
            assert_same_shape(networks, "networks-list-resp.json", await c.get("/os-networks"))
            assert_same_shape(networks, "network-show-resp.json", await c.get(f"/os-networks/{c.network_id}"))
            assert_same_shape(
                SAMPLES / "os-tenant-networks", "networks-list-res.json", await c.get("/os-tenant-networks")
            )
            assert_same_shape(SAMPLES / "os-floating-ip-pools", "floatingippools-list-resp.json", await c.get(POOLS))
            assert_same_shape(addresses, "floating-ips-list-empty-resp.json", await c.get(ADDRESSES))
            created = await c.post(ADDRESSES, sample(addresses, "floating-ips-create-req.json"))
            assert_same_shape(addresses, "floating-ips-create-resp.json", created)
            shown = await c.get(f"{ADDRESSES}/{created.json()['floating_ip']['id']}")
            assert_same_shape(addresses, "floating-ips-get-resp.json", shown)
            assert_same_shape(addresses, "floating-ips-list-resp.json", await c.get(ADDRESSES))

    run(scenario())


def test_security_groups(sqlite_url: str) -> None:
    groups = SAMPLES / "os-security-groups"

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=0) as c:
            created = await c.post(GROUPS, sample(groups, "security-group-post-req.json"))
            assert_same_shape(groups, "security-groups-create-resp.json", created)
            group_id = created.json()["security_group"]["id"]
            assert_same_shape(groups, "security-groups-get-resp.json", await c.get(f"{GROUPS}/{group_id}"))
            assert_same_shape(groups, "security-groups-list-get-resp.json", await c.get(f"{GROUPS}?offset=1"))
            body = with_existing_ids(sample(groups, "security-group-rules-post-req.json"), parent_group_id=group_id)
            assert_same_shape(groups, "security-group-rules-post-resp.json", await c.post(RULES, body))

    run(scenario())


def test_usage_audits(sqlite_url: str) -> None:
    audits, path = SAMPLES / "os-instance-usage-audit-log", "/os-instance_usage_audit_log"

    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=4) as c:
            names = list(sample(audits, "inst-usage-audit-log-index-get-resp.json")["instance_usage_audit_logs"]["log"])
            async with c.db.transaction() as tx:
                for number, name in enumerate(names, 1):
                    await tx.execute("UPDATE services SET host = $2 WHERE host = $1", f"host{number}", name)
            for name in names:
                await set_created_at(c, name, "2012-01-01")
            assert_same_shape(audits, "inst-usage-audit-log-index-get-resp.json", await c.get(path, as_="admin"))
            shown = await c.get(f"{path}/2012-07-05%2010:00:00", as_="admin")
            assert_same_shape(audits, "inst-usage-audit-log-show-get-resp.json", shown)
            log = shown.json()["instance_usage_audit_log"]
            assert (log["period_beginning"], log["period_ending"]) == ("2012-06-01 00:00:00", "2012-07-01 00:00:00")

    run(scenario())
