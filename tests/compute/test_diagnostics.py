"""Diagnostics of servers, their password and NUMA topology."""

from __future__ import annotations

from kilonova.compute.diagnostics import FIELDS, old_form
from tests.compute.servers.support import act
from tests.support import run
from tests.support.full_cloud import full_cloud
from tests.support.route_coverage import proves


@proves("GET /servers/{server_id}/diagnostics")
def test_diagnostics_of_a_running_server(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            path = f"/servers/{server_id}/diagnostics"
            shown = (await c.get(path, as_="admin", version="2.48")).json()
            assert list(shown) == list(FIELDS)
            assert (shown["state"], shown["num_cpus"]) == ("running", 1)
            old = (await c.get(path, as_="admin", version="2.47")).json()
            assert old["memory"] == 512 * 1024
            assert (await c.get(path, version="2.48")).status == 403
            assert (await c.get(f"{path}?x=1", as_="admin", version="2.101")).status == 200
            assert (await c.get(f"{path}?x=1", as_="admin", version="2.102")).status == 400
            await act(c, server_id, "os-stop")
            await c.wait_until_settled(server_id)
            assert (await c.get(path, as_="admin", version="2.48")).status == 409

    run(scenario())


def test_format_before_2_48() -> None:
    found = {
        "cpu_details": [{"id": 0, "time": 7, "utilisation": 1}],
        "memory_details": {"maximum": 2, "used": 1},
        "disk_details": [{"read_bytes": 1, "read_requests": 2, "write_bytes": 3, "write_requests": 4}],
        "nic_details": [{"mac_address": "m", "rx_octets": 5, "tx_octets": 6, "rx_packets": 7, "tx_packets": 8}],
    }
    assert old_form(found) == {
        "cpu0_time": 7,
        "memory": 2048,
        "vda_read": 1,
        "vda_read_req": 2,
        "vda_write": 3,
        "vda_write_req": 4,
        "vda_errors": -1,
        "vnet0_rx": 5,
        "vnet0_tx": 6,
        "vnet0_rx_packets": 7,
        "vnet0_tx_packets": 8,
        **{f"vnet0_{way}_{what}": None for way in ("rx", "tx") for what in ("errors", "drop")},
    }


@proves("GET /servers/{server_id}/os-server-password", "DELETE /servers/{server_id}/os-server-password")
@proves("GET /servers/{server_id}/topology")
def test_passwords_and_topology(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            password = f"/servers/{server_id}/os-server-password"
            assert (await c.get(password, as_="reader")).json() == {"password": ""}
            assert (await c.delete(password)).status == 204
            assert (await c.delete(password, as_="reader")).status == 403
            assert (await c.get(password, as_="other")).status == 404
            topology = f"/servers/{server_id}/topology"
            assert (await c.get(topology, version="2.77")).status == 404
            shown = await c.get(topology, version="2.78", as_="reader")
            assert shown.json() == {"nodes": [], "pagesize_kb": None}

    run(scenario())
