"""Who may call the routes of the Shared File System API."""

from __future__ import annotations

from typing import Any

from kilonova.policy.share import RULES
from kilonova.share import build
from tests.authorization.support import Comparison, Part, caller_of, check_readers_write_nothing, check_rules
from tests.fuzz.resources import SHARE_BODIES, ApiCaller, create_share_resources
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud

PARTS = [
    Part(
        "share:force_extend",
        "POST /shares/{share_id}/action#extend",
        {"extend": {"new_size": 3, "force": True}},
        version="2.82",
    )
]
BODIES = {
    **SHARE_BODIES,
    "POST /shares": {"share": {"share_proto": "NFS", "size": 1}},
    "PUT /shares/{share_id}": {"share": {"name": "n"}},
    "PUT /quota-sets/{project_id}": {"quota_set": {"shares": 9}},
}


async def create_objects(c: FullCloud, as_: str) -> dict[str, Any]:
    """Objects of a member of the project: nobody but administrators deletes the locks of administrators."""
    return await create_share_resources(c, ApiCaller(c, build(), as_))


def test_answers_match_the_page(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            own, other = await create_objects(c, "member"), await create_objects(c, "other")
            compared = Comparison(
                build(),
                c.services,
                caller_of(c, build()),
                own,
                other,
                lambda names: {**BODIES, "GET /share-access-rules": {"share_id": names["share_id"]}},
                parts=PARTS,
            )
            await compared.run()
            assert not compared.wrong, "\n".join(compared.wrong)
            check_rules(compared, RULES, {})

    run(scenario())


def test_readers_write_nothing() -> None:
    check_readers_write_nothing(build(), {})
