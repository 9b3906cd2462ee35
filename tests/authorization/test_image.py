"""Who may call the routes of the Image API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.image import build
from kilonova.image.images.api import CHOOSE_ID, VISIBILITY_RULES
from kilonova.policy.image import RULES
from tests.authorization.support import Comparison, Part, caller_of, check_readers_write_nothing, check_rules
from tests.fuzz.resources import ApiCaller
from tests.support import run
from tests.support.cloud import ADMIN, DEMO, OTHER
from tests.support.full_cloud import FullCloud, full_cloud

IMAGE = {"name": "i", "disk_format": "raw", "container_format": "bare", "tags": ["tag"]}
MISSING = {"GET /v2/info/stores"}
PARTS = [
    *(
        Part(rule, "POST /v2/images", {**IMAGE, "visibility": visibility})
        for visibility, rule in VISIBILITY_RULES.items()
    ),
    Part(CHOOSE_ID, "POST /v2/images", {**IMAGE, "id": "6a52b9b0-4b9d-4d0c-8f0b-2f5e0a3e5a53"}),
]
NOT_CALLED = {
    **dict.fromkeys(("import_image", "stage_image", "copy_image", "cache_image"), "images are uploaded only"),
    **dict.fromkeys(("get_task", "get_tasks"), "there are no tasks"),
    **dict.fromkeys(("get_image_location", "set_image_location", "delete_image_location"), "locations are not shown"),
}
ANSWER = "PUT /v2/images/{image_id}/members/{member_id}"


def bodies(names: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "PUT /v2/images/{image_id}/file": b"x",
        "PUT /v2/images/{image_id}/stage": b"x",
        "POST /v2/images": {**IMAGE, "owner": names["owner"]},
        "POST /v2/images/{image_id}/import": {"method": {"name": "glance-direct"}},
    }


async def create_objects(c: FullCloud, project_id: str) -> dict[str, Any]:
    call = ApiCaller(c, build(), f"admin@{project_id}")
    image = (await call("POST", "/v2/images", None, {**IMAGE, "visibility": "shared"})).json()["id"]
    await call("PUT", f"/v2/images/{image}/file", None, b"x")
    await call("POST", f"/v2/images/{image}/members", None, {"member": ADMIN})
    return {
        "image_id": image,
        "member_id": ADMIN,
        "member": "m",
        "tag": "tag",
        "schemas/name": "image",
        "owner": project_id,
    }


async def share(c: FullCloud, project_id: str) -> dict[str, Any]:
    call = ApiCaller(c, build())
    image = (await call("POST", "/v2/images", None, {**IMAGE, "visibility": "shared"})).json()["id"]
    await call("POST", f"/v2/images/{image}/members", None, {"member": project_id})
    return {"image_id": image, "member_id": project_id}


def test_answers_match_the_page(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            own, other = await create_objects(c, DEMO), await create_objects(c, OTHER)
            # Members answer to images that others share with their project.
            special = {ANSWER: (await share(c, DEMO), await share(c, OTHER))}
            compared = Comparison(
                build(),
                c.services,
                caller_of(c, build()),
                own,
                other,
                bodies,
                parts=PARTS,
                missing=MISSING,
                special=special,
            )
            await compared.run()
            assert not compared.wrong, "\n".join(compared.wrong)
            check_rules(compared, RULES, NOT_CALLED)

    run(scenario())


def test_readers_write_nothing() -> None:
    check_readers_write_nothing(build(), {})
