"""Image members."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.image.support import images
from tests.support.cloud import OTHER


def test_image_is_shared_with_members(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(database_url, tmp_path) as cloud:
            image = await cloud.make(name="shared")
            members = f"/images/{image['id']}/members"
            added = (await cloud.call("POST", members, {"member": OTHER})).json()
            assert (added["member_id"], added["status"], added["image_id"]) == (OTHER, "pending", image["id"])
            assert await cloud.status("POST", members, {"member": OTHER}) == 409
            assert (await cloud.show(image["id"], as_="other"))["name"] == "shared"
            assert await cloud.names(as_="other") == []
            assert await cloud.names({"member_status": "all"}, as_="other") == ["shared"]
            assert await cloud.status("PUT", f"{members}/{OTHER}", {"status": "accepted"}) == 403
            accepted = await cloud.ok("PUT", f"{members}/{OTHER}", {"status": "accepted"}, as_="other")
            assert accepted["status"] == "accepted"
            assert await cloud.names(as_="other") == ["shared"]
            assert len((await cloud.ok("GET", members))["members"]) == 1
            assert len((await cloud.ok("GET", members, as_="other"))["members"]) == 1
            assert (await cloud.ok("GET", f"{members}/{OTHER}"))["status"] == "accepted"
            assert await cloud.status("POST", members, {"member": "x"}, as_="other") == 403
            assert await cloud.status("PUT", f"{members}/{OTHER}", {"status": "perhaps"}, as_="other") == 400
            await cloud.ok("DELETE", f"{members}/{OTHER}")
            assert await cloud.status("GET", f"/images/{image['id']}", as_="other") == 404
            assert await cloud.status("DELETE", f"{members}/{OTHER}") == 404
            private = await cloud.make(visibility="private")
            assert await cloud.status("POST", f"/images/{private['id']}/members", {"member": OTHER}) == 403

    asyncio.run(scenario())
