"""Volume attachments: attach, show, detach."""

from __future__ import annotations

from typing import Any

from kilonova.ids import is_uuid
from tests.compute.servers.support import act
from tests.compute.test_instance_actions import action, actions
from tests.compute.volume_attachments.support import (
    NEWEST,
    attach,
    attachments,
    detach,
    guest_volumes,
    path,
    request_attach,
    wait_until_idle,
)
from tests.support import run
from tests.support.full_cloud import full_cloud
from tests.support.route_coverage import proves
from tests.support.volumes import make_volume, show_volume, wait_for_volume

ATTACHMENTS = "/servers/{server_id}/os-volume_attachments"
ATTACHMENT = ATTACHMENTS + "/{volume_id}"


@proves(f"POST {ATTACHMENTS}", f"GET {ATTACHMENTS}", f"GET {ATTACHMENT}", f"DELETE {ATTACHMENT}")
def test_attach_and_detach(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            volume_id = await make_volume(c)
            shown = await attach(c, server_id, volume_id, tag="data", delete_on_termination=True)
            common = {
                "serverId": server_id,
                "volumeId": volume_id,
                "device": "/dev/vdb",
                "tag": "data",
                "delete_on_termination": True,
            }
            assert shown == {"id": volume_id, **common}
            (listed,) = await attachments(c, server_id)
            ids = {name: listed.pop(name) for name in ("attachment_id", "bdm_uuid")}
            assert all(map(is_uuid, ids.values()))
            assert listed == common
            one = await c.get(path(server_id, volume_id), version=NEWEST, as_="reader")
            assert one.json()["volumeAttachment"] == {**common, **ids}
            (seen,) = (await show_volume(c, volume_id))["attachments"]
            assert (seen["server_id"], seen["attachment_id"]) == (server_id, ids["attachment_id"])
            assert await guest_volumes(c, server_id) == [volume_id]

            await detach(c, server_id, volume_id)
            assert (await wait_for_volume(c, volume_id, "available"))["attachments"] == []
            assert await attachments(c, server_id) == []
            assert await guest_volumes(c, server_id) == []
            assert (await c.get(path(server_id, volume_id))).status == 404

    run(scenario())


def test_fields_by_version(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, volume_id = (await c.boot_active())["id"], await make_volume(c)
            first = {"id", "serverId", "volumeId", "device"}
            last = {"serverId", "volumeId", "device", "tag", "delete_on_termination", "attachment_id", "bdm_uuid"}
            versions: dict[str, set[str]] = {
                "2.1": first,
                "2.69": first,
                "2.70": {*first, "tag"},
                "2.78": {*first, "tag"},
                "2.79": {*first, "tag", "delete_on_termination"},
                "2.88": {*first, "tag", "delete_on_termination"},
                "2.89": last,
            }
            for version, fields in versions.items():
                made = await attach(c, server_id, volume_id, version=version)
                assert set(made) == (fields if version != "2.89" else {*first, "tag", "delete_on_termination"})
                (listed,) = await attachments(c, server_id, version)
                assert set(listed) == fields, version
                await detach(c, server_id, volume_id)
            answer = await request_attach(c, server_id, volume_id, version="2.101")
            assert (answer.status, answer.body) == (202, b"")
            await wait_for_volume(c, volume_id, "in-use")

    run(scenario())


def test_steps_are_events_of_the_action(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, volume_id = (await c.boot_active())["id"], await make_volume(c)
            await attach(c, server_id, volume_id)
            await detach(c, server_id, volume_id)
            listed = await actions(c, server_id)
            assert [each["action"] for each in listed] == ["detach_volume", "attach_volume", "create"]
            steps = [await events(c, server_id, each["request_id"]) for each in listed[:2]]
            assert steps == [
                ["begin detaching", "detach disk", "release volume", "settle"],
                ["reserve volume", "connect volume", "attach disk", "complete volume", "settle"],
            ]

    run(scenario())


async def events(c: Any, server_id: str, request_id: str) -> list[str]:
    shown = await action(c, server_id, request_id, version="2.84")
    assert {event["result"] for event in shown["events"]} == {"Success"}
    return [event["event"] for event in shown["events"]]


def test_volumes_stay_through_stop_start_and_shelving(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2, compute__shelved_offload_seconds=-1) as c:
            server_id, first, second = (await c.boot_active())["id"], await make_volume(c), await make_volume(c)
            await act(c, server_id, "os-stop")
            await c.wait_until_settled(server_id)
            await attach(c, server_id, first)
            await act(c, server_id, "os-start")
            await c.wait_until_settled(server_id)
            assert await guest_volumes(c, server_id) == [first]
            await act(c, server_id, "shelve")
            assert (await c.wait_until_settled(server_id))["status"] == "SHELVED"
            await attach(c, server_id, second)
            assert await guest_volumes(c, server_id) == sorted([first, second])
            await detach(c, server_id, first)
            assert await guest_volumes(c, server_id) == [second]

    run(scenario())


def test_revert_resize_keeps_later_attachments_and_detachments(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            server_id, gone, kept, new = (await c.boot_active())["id"], *[await make_volume(c) for _ in range(3)]
            for volume_id in (gone, kept):
                await attach(c, server_id, volume_id)
            await act(c, server_id, "resize", {"flavorRef": "2"})
            assert (await c.wait_until_settled(server_id))["status"] == "VERIFY_RESIZE"
            await detach(c, server_id, gone)
            await attach(c, server_id, new)
            await act(c, server_id, "revertResize")
            assert (await c.wait_until_settled(server_id))["status"] == "ACTIVE"
            assert await guest_volumes(c, server_id) == sorted([kept, new])
            assert (await show_volume(c, gone))["status"] == "available"
            for volume_id in (kept, new):
                assert (await show_volume(c, volume_id))["status"] == "in-use"

    run(scenario())


def test_attach_to_shelved_offloaded_server(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2, compute__shelved_offload_seconds=0) as c:
            server_id, first, second = (await c.boot_active())["id"], await make_volume(c), await make_volume(c)
            await act(c, server_id, "shelve")
            assert (await c.wait_until_settled(server_id))["status"] == "SHELVED_OFFLOADED"
            shown = await attach(c, server_id, first)
            assert shown["device"] == "/dev/vdb"
            await attach(c, server_id, second)
            await detach(c, server_id, first)
            await wait_for_volume(c, first, "available")
            await act(c, server_id, "unshelve")
            assert (await c.wait_until_settled(server_id))["status"] == "ACTIVE"
            await wait_until_idle(c, server_id)
            assert await guest_volumes(c, server_id) == [second]
            assert [each["volumeId"] for each in await attachments(c, server_id)] == [second]

    run(scenario())
