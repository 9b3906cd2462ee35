"""Image members."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.image.support import images
from tests.support.cloud import OTHER

ID = "6a52b9b0-4b9d-4d0c-8f0b-2f5e0a3e5a53"


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


WRONG: list[tuple[Any, int]] = [
    (None, 400),
    ([], 400),
    ({"id": "no-uuid"}, 400),
    ({"id": f"../{ID}"}, 400),
    ({"name": "x" * 256}, 400),
    ({"name": 7}, 400),
    ({"disk_format": "floppy"}, 400),
    ({"container_format": "crate"}, 400),
    ({"visibility": "secret"}, 400),
    ({"min_disk": -1}, 400),
    ({"min_ram": 2**40}, 400),
    ({"protected": "yes"}, 400),
    ({"tags": ["x" * 256]}, 400),
    ({"tags": "t"}, 400),
    ({"my_property": 7}, 400),
    ({"my_property": {"a": "b"}}, 400),
    ({"my_property": "a\u0000b"}, 400),
    ({"x" * 256: "too long a name"}, 400),
    ({"": "no name"}, 400),
    ({"status": "active"}, 403),
    ({"size": 1}, 403),
    ({"locations": []}, 403),
    ({"deleted": "true"}, 403),
    ({f"p{n}": "v" for n in range(129)}, 413),
]
