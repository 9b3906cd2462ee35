"""Providers below providers."""

from __future__ import annotations

import asyncio

from kilonova.ids import new_id
from tests.placement.rest.support import Place, at, on_both, refused
from tests.placement.support import marks

ALL = "/resource_providers"


async def place_of(place: Place, uuid: str) -> tuple[str | None, str]:
    """Parent and root."""
    shown = await place.told(f"{ALL}/{uuid}")
    return shown["parent_provider_uuid"], shown["root_provider_uuid"]


async def move(place: Place, uuid: str, parent: str | None, version: str = "1.39") -> int:
    name = (await place.told(f"{ALL}/{uuid}"))["name"]
    body = {"name": name, "parent_provider_uuid": parent}
    status: int = (await place.put(f"{ALL}/{uuid}", body, version=version)).status
    return status


@on_both
async def test_children_have_their_parents_root(place: Place) -> None:
    root = await place.provider("root")
    child = await place.provider("child", root)
    grandchild = await place.provider("grandchild", child)
    assert await place_of(place, grandchild) == (child, root)
    found = await place.told(f"{ALL}?in_tree={grandchild}")
    assert [one["uuid"] for one in found["resource_providers"]] == [root, child, grandchild]


@on_both
async def test_a_new_child_is_noticed_at_the_root(place: Place) -> None:
    root = await place.provider("root")
    child = await place.provider("child", root)
    before = await marks(place.db, root)
    grandchild = await place.provider("grandchild", child)
    after = await marks(place.db, root)
    assert after[0] == before[0]
    assert after[2] > before[2]
    assert (await place.delete(f"{ALL}/{grandchild}")).status == 204
    assert (await marks(place.db, root))[2] > after[2]


@on_both
async def test_wrong_parents(place: Place) -> None:
    uuid = await place.provider("a")
    missing = new_id()
    for body, words in (
        (
            {"name": "b", "uuid": missing, "parent_provider_uuid": missing},
            "parent provider UUID cannot be same as UUID",
        ),
        ({"name": "b", "uuid": missing, "parent_provider_uuid": new_id()}, "parent provider UUID does not exist"),
    ):
        refused(await place.post(ALL, body), 400, f'Unable to create resource provider "b", {missing}')
        refused(await place.post(ALL, body), 400, words)
    body = {"name": "a", "parent_provider_uuid": missing}
    refused(await place.put(f"{ALL}/{uuid}", body), 400, "parent provider UUID does not exist")


@on_both
async def test_a_parent_is_not_deleted(place: Place) -> None:
    root = await place.provider()
    await place.provider("child", root)
    refused(
        await place.delete(f"{ALL}/{root}"),
        409,
        f"Unable to delete parent resource provider {root}: It has child resource providers.",
        "placement.resource_provider.cannot_delete_parent",
    )


@at("1.14", "1.36", "1.37")
@on_both
async def test_a_parent_can_be_given_once(place: Place, version: str) -> None:
    root, child = await place.provider(), await place.provider()
    assert await move(place, child, None, version) == 200
    assert await move(place, child, root, version) == 200
    assert await move(place, child, root, version) == 200
    assert await place_of(place, child) == (root, root)
    assert (await place.generation(root), await place.generation(child)) == (0, 0)


@on_both
async def test_a_parent_changes_from_1_37_on(place: Place) -> None:
    one, two, child = await place.provider(), await place.provider(), await place.provider()
    grandchild = await place.provider("grandchild", child)
    assert await move(place, child, one) == 200
    for parent, words in ((two, "re-parenting"), (None, "un-parenting")):
        body = {"name": "x", "parent_provider_uuid": parent}
        answer = await place.put(f"{ALL}/{child}", body, version="1.36")
        refused(answer, 400, f"{words} a provider is not currently allowed.")
    before = {uuid: await marks(place.db, uuid) for uuid in (one, two, child, grandchild)}
    assert await move(place, child, two) == 200
    assert await place_of(place, grandchild) == (child, two)
    for uuid, seen in before.items():
        now = await marks(place.db, uuid)
        assert now[0] == seen[0]
        assert now[2] > seen[2]
    assert await move(place, child, None) == 200
    assert await place_of(place, child) == (None, child)
    assert await place_of(place, grandchild) == (child, child)


@on_both
async def test_no_loops(place: Place) -> None:
    root = await place.provider("root")
    child = await place.provider("child", root)
    grandchild = await place.provider("grandchild", child)
    for parent in (root, child, grandchild):
        body = {"name": "root", "parent_provider_uuid": parent}
        refused(await place.put(f"{ALL}/{root}", body), 400, "creating loop in the provider tree is not allowed.")


@on_both
async def test_moving_at_once_makes_no_loop(place: Place) -> None:
    uuids = [await place.provider() for _ in range(6)]
    moves = [(uuid, parent) for uuid in uuids for parent in uuids if uuid != parent]
    answers = await asyncio.gather(*(move(place, uuid, parent) for uuid, parent in moves))
    assert set(answers) <= {200, 400}
    rows = {row["id"]: row for row in await place.db.fetch("SELECT id, parent_id, root_id FROM resource_providers")}
    for row in rows.values():
        above, seen = row, set()
        while above["parent_id"] is not None:
            assert above["id"] not in seen
            seen.add(above["id"])
            above = rows[above["parent_id"]]
        assert row["root_id"] == above["id"]


@on_both
async def test_a_parent_that_goes_while_a_child_comes(place: Place) -> None:
    for number in range(10):
        root = await place.provider()
        body = {"name": f"child-{number}", "parent_provider_uuid": root}
        made, gone = await asyncio.gather(place.post(ALL, body), place.delete(f"{ALL}/{root}"))
        assert (made.status, gone.status) in ((200, 409), (400, 204))
