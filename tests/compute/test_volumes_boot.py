"""The old name of servers: the same routes, until they end."""

from __future__ import annotations

from tests.support import run
from tests.support.full_cloud import full_cloud
from tests.support.route_coverage import proves

OLD = "/os-volumes_boot"


@proves(
    *("GET /os-volumes_boot", "POST /os-volumes_boot", "GET /os-volumes_boot/detail"),
    *("GET /os-volumes_boot/{server_id}", "PUT /os-volumes_boot/{server_id}", "DELETE /os-volumes_boot/{server_id}"),
    *("POST /os-volumes_boot/{server_id}/action#os-stop", "POST /os-volumes_boot/{server_id}/action#os-start"),
)
def test_servers_by_their_old_name(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            root = {"source_type": "image", "uuid": c.image_id, "destination_type": "volume", "boot_index": 0}
            device = {**root, "volume_size": 1, "delete_on_termination": True}
            server = {"name": "s", "flavorRef": "1", "imageRef": "", "block_device_mapping_v2": [device]}
            answer = await c.post(OLD, {"server": server}, version="2.1")
            assert answer.status == 202, answer.body
            server_id = answer.json()["server"]["id"]
            await c.wait_until_settled(server_id)
            one = f"{OLD}/{server_id}"
            assert (await c.get(one)).json()["server"]["status"] == "ACTIVE"
            # What came with a version is there only from that version on.
            assert "locked" not in (await c.get(one, version="2.8")).json()["server"]
            assert "locked" in (await c.get(one, version="2.9")).json()["server"]
            assert [each["id"] for each in (await c.get(OLD)).json()["servers"]] == [server_id]
            assert len((await c.get(f"{OLD}/detail")).json()["servers"]) == 1
            assert (await c.put(one, {"server": {"name": "t"}})).json()["server"]["name"] == "t"
            for action in ("os-stop", "os-start"):
                assert (await c.post(f"{one}/action", {action: None})).status == 202
                await c.wait_until_settled(server_id)
            for path in (OLD, one):
                assert (await c.get(path, version="2.102")).status == 200
                assert (await c.get(path, version="2.103")).status == 404
            assert (await c.post(f"{one}/action", {"lock": None})).status in (400, 404)
            assert (await c.delete(one)).status == 204
            await c.wait_until_deleted(server_id)

    run(scenario())
