"""Parents and roots of providers."""

from __future__ import annotations

import asyncio

from kilonova.ids import new_id
from tests.placement.rest.support import Place, assert_error, at, on_both
from tests.placement.support import counters

ALL = "/resource_providers"


async def parent_and_root(place: Place, uuid: str) -> tuple[str | None, str]:
    """Parent and root of a provider."""
    shown = await place.get_json(f"{ALL}/{uuid}")
    return shown["parent_provider_uuid"], shown["root_provider_uuid"]


async def set_parent(place: Place, uuid: str, parent: str | None, version: str = "1.39") -> int:
    name = (await place.get_json(f"{ALL}/{uuid}"))["name"]
    body = {"name": name, "parent_provider_uuid": parent}
    status: int = (await place.put(f"{ALL}/{uuid}", body, version=version)).status
    return status


@on_both
async def test_child_has_root_of_parent(place: Place) -> None:
    root = await place.provider("root")
    child = await place.provider("child", root)
    grandchild = await place.provider("grandchild", child)
    assert await parent_and_root(place, grandchild) == (child, root)
    found = await place.get_json(f"{ALL}?in_tree={grandchild}")
    assert [one["uuid"] for one in found["resource_providers"]] == [root, child, grandchild]


@on_both
async def test_new_child_changes_root(place: Place) -> None:
    root = await place.provider("root")
    child = await place.provider("child", root)
    before = await counters(place.db, root)
    grandchild = await place.provider("grandchild", child)
    after = await counters(place.db, root)
    assert after[0] == before[0]
    assert after[2] > before[2]
    assert (await place.delete(f"{ALL}/{grandchild}")).status == 204
    assert (await counters(place.db, root))[2] > after[2]


@on_both
async def test_invalid_parents(place: Place) -> None:
    uuid = await place.provider("a")
    missing = new_id()
    for body, words in (
        (
            {"name": "b", "uuid": missing, "parent_provider_uuid": missing},
            "parent provider UUID cannot be same as UUID",
        ),
        ({"name": "b", "uuid": missing, "parent_provider_uuid": new_id()}, "parent provider UUID does not exist"),
    ):
        assert_error(await place.post(ALL, body), 400, f'Unable to create resource provider "b", {missing}')
        assert_error(await place.post(ALL, body), 400, words)
    body = {"name": "a", "parent_provider_uuid": missing}
    assert_error(await place.put(f"{ALL}/{uuid}", body), 400, "parent provider UUID does not exist")


@on_both
async def test_provider_with_children_cannot_be_deleted(place: Place) -> None:
    root = await place.provider()
    await place.provider("child", root)
    assert_error(
        await place.delete(f"{ALL}/{root}"),
        409,
        f"Unable to delete parent resource provider {root}: It has child resource providers.",
        "placement.resource_provider.cannot_delete_parent",
    )


@at("1.14", "1.36", "1.37")
@on_both
async def test_before_1_37_parent_can_be_set_once(place: Place, version: str) -> None:
    root, child = await place.provider(), await place.provider()
    assert await set_parent(place, child, None, version) == 200
    assert await set_parent(place, child, root, version) == 200
    assert await set_parent(place, child, root, version) == 200
    assert await parent_and_root(place, child) == (root, root)
    assert (await place.generation(root), await place.generation(child)) == (0, 0)


@on_both
async def test_parent_can_change_since_1_37(place: Place) -> None:
    one, two, child = await place.provider(), await place.provider(), await place.provider()
    grandchild = await place.provider("grandchild", child)
    assert await set_parent(place, child, one) == 200
    for parent, words in ((two, "re-parenting"), (None, "un-parenting")):
        body = {"name": "x", "parent_provider_uuid": parent}
        response = await place.put(f"{ALL}/{child}", body, version="1.36")
        assert_error(response, 400, f"{words} a provider is not currently allowed.")
    before = {uuid: await counters(place.db, uuid) for uuid in (one, two, child, grandchild)}
    assert await set_parent(place, child, two) == 200
    assert await parent_and_root(place, grandchild) == (child, two)
    for uuid, seen in before.items():
        now = await counters(place.db, uuid)
        assert now[0] == seen[0]
        assert now[2] > seen[2]
    assert await set_parent(place, child, None) == 200
    assert await parent_and_root(place, child) == (None, child)
    assert await parent_and_root(place, grandchild) == (child, child)


@on_both
async def test_parent_loops_are_refused(place: Place) -> None:
    root = await place.provider("root")
    child = await place.provider("child", root)
    grandchild = await place.provider("grandchild", child)
    for parent in (root, child, grandchild):
        body = {"name": "root", "parent_provider_uuid": parent}
        assert_error(await place.put(f"{ALL}/{root}", body), 400, "creating loop in the provider tree is not allowed.")


@on_both
async def test_concurrent_moves_make_no_loop(place: Place) -> None:
    uuids = [await place.provider() for _ in range(6)]
    moves = [(uuid, parent) for uuid in uuids for parent in uuids if uuid != parent]
    responses = await asyncio.gather(*(set_parent(place, uuid, parent) for uuid, parent in moves))
    assert set(responses) <= {200, 400}
    rows = {row["id"]: row for row in await place.db.fetch("SELECT id, parent_id, root_id FROM resource_providers")}
    for row in rows.values():
        above, seen = row, set()
        while above["parent_id"] is not None:
            assert above["id"] not in seen
            seen.add(above["id"])
            above = rows[above["parent_id"]]
        assert row["root_id"] == above["id"]


@on_both
async def test_delete_parent_during_concurrent_create_of_child(place: Place) -> None:
    for number in range(10):
        root = await place.provider()
        body = {"name": f"child-{number}", "parent_provider_uuid": root}
        created, deleted = await asyncio.gather(place.post(ALL, body), place.delete(f"{ALL}/{root}"))
        assert (created.status, deleted.status) in ((200, 409), (400, 204))
