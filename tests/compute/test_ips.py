"""The addresses of a server, by network."""

from __future__ import annotations

from tests.support import run
from tests.support.full_cloud import full_cloud
from tests.support.route_coverage import proves

UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"


@proves("GET /servers/{server_id}/ips", "GET /servers/{server_id}/ips/{network}")
def test_addresses_by_network(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server = await c.boot_active()
            (seen,) = server["addresses"]["private"]
            expected = [{"version": seen["version"], "addr": seen["addr"]}]
            path = f"/servers/{server['id']}/ips"
            assert (await c.get(path, as_="reader")).json() == {"addresses": {"private": expected}}
            assert (await c.get(f"{path}/private", as_="reader")).json() == {"private": expected}
            assert (await c.get(f"{path}/other")).status == 404
            assert (await c.get(path, as_="other")).status == 404
            assert (await c.get(f"/servers/{UNKNOWN_ID}/ips")).status == 404
            assert (await c.get(f"{path}?unknown=1", version="2.101")).status == 200
            assert (await c.get(f"{path}?unknown=1", version="2.102")).status == 400

    run(scenario())
