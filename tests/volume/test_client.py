"""Compute's client of the volume service, with the built-in service and with scripted responses."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from kilonova.http.client import ClientResponse, Unreachable
from kilonova.identity.client import Auth
from kilonova.ids import new_id
from kilonova.volume.client import Attachment, VolumeClient, VolumeError, VolumeServiceTooOld
from tests.support import run
from tests.support.cloud import ADMIN, DEMO
from tests.volume.messages.test_messages import put_message
from tests.volume.support import VolumeCloud, put_volume, volume_cloud

SERVICE, MEMBER = Auth("kilonova", ADMIN, is_service=True), Auth("member", DEMO)
SERVER = new_id()


class Scripted:
    """A service with one fixed response. It records the requests."""

    def __init__(self, status: int, body: Any) -> None:
        self._answer = ClientResponse(status, {}, body if isinstance(body, bytes) else orjson.dumps(body))
        self.requests: list[tuple[str, str, dict[str, str]]] = []

    async def request(self, method: str, path: str, *, headers: dict[str, str], json: Any = None) -> ClientResponse:
        self.requests.append((method, path, headers))
        return self._answer


def scripted(status: int, body: Any) -> tuple[VolumeClient, Scripted]:
    service = Scripted(status, body)
    return VolumeClient(service), service  # type: ignore[arg-type]


def client_of(c: VolumeCloud) -> VolumeClient:
    return c.services.volume


def test_volumes(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url) as c:
            client = client_of(c)
            created = await client.create({"size": 1, "name": "v"}, MEMBER)
            await c.until(f"/volumes/{created.id}", lambda shown: shown["status"] == "available")
            shown = await client.show(created.id, SERVICE)
            assert shown is not None
            assert (shown.name, shown.multiattach, shown.size) == ("v", False, 1)
            assert [one.id for one in await client.volumes(MEMBER, {"name": "v"})] == [created.id]
            assert await client.volumes(MEMBER, {"name": "w"}) == []
            assert shown.image_metadata == {}
            snapshot = await client.create_snapshot({"volume_id": created.id, "name": "s"}, MEMBER)
            await c.until(f"/snapshots/{snapshot.id}", lambda shown: shown["status"] == "available")
            found = await client.snapshot(snapshot.id, MEMBER)
            assert found is not None
            assert (found.name, found.volume_id) == ("s", created.id)
            assert [one.id for one in await client.snapshots(MEMBER)] == [snapshot.id]
            await client.delete_snapshot(snapshot.id, MEMBER)
            await c.gone(f"/snapshots/{snapshot.id}")
            await client.delete(created.id, MEMBER)
            await c.gone(f"/volumes/{created.id}")
            await client.delete(created.id, MEMBER)
            await client.delete_snapshot(snapshot.id, MEMBER)
            assert await client.show(created.id, MEMBER) is None
            assert await client.snapshot(snapshot.id, MEMBER) is None
            assert "__DEFAULT__" in [one.name for one in await client.types(MEMBER)]

    run(scenario())


def test_attachment_lifecycle(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            client, volume_id = client_of(c), await put_volume(c.db)
            reserved = await client.create_attachment(volume_id, SERVER, SERVICE)
            assert (reserved.status, reserved.connection) == ("reserved", {})
            connected = await client.update_attachment(reserved.id, {"host": "host1"}, SERVICE, device="/dev/vdb")
            way: dict[str, Any] = connected.connection
            assert set(way) == {"driver_volume_type", "data"}
            assert (way["driver_volume_type"], way["data"]["volume_id"]) == ("kilonova_file", volume_id)
            await client.complete_attachment(reserved.id, SERVICE)
            shown = await client.attachment(reserved.id, SERVICE)
            assert shown is not None
            assert (shown.status, shown.connection) == ("attached", way)
            (entry,) = (await c.item(f"/volumes/{volume_id}"))["attachments"]
            assert (entry["server_id"], entry["device"]) == (SERVER, "/dev/vdb")

            await client.begin_detaching(volume_id, SERVICE)
            assert (await c.item(f"/volumes/{volume_id}"))["status"] == "detaching"
            await client.roll_detaching(volume_id, SERVICE)
            assert (await c.item(f"/volumes/{volume_id}"))["status"] == "in-use"

            second = await client.create_attachment(
                volume_id, SERVER, SERVICE, {"host": "host2"}, device="/dev/vdb", mode="ro"
            )
            assert second.connection_info is not None
            assert second.connection_info["access_mode"] == "ro"
            listed = await client.attachments(SERVICE, volume_id=volume_id, instance_id=SERVER)
            assert {one.id for one in listed} == {reserved.id, second.id}
            with pytest.raises(VolumeError, match="status is in-use") as refused:
                await client.create_attachment(volume_id, new_id(), SERVICE)
            assert refused.value.status == 400
            for one in (*listed, reserved):
                await client.delete_attachment(one.id, SERVICE)
            assert await client.attachment(reserved.id, SERVICE) is None
            assert (await c.item(f"/volumes/{volume_id}"))["status"] == "available"

    run(scenario())


def test_lists_fetch_all_pages(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False, api__max_limit=2) as c:
            created = {await put_volume(c.db) for _ in range(5)}
            assert {one.id for one in await client_of(c).volumes(MEMBER)} == created

    run(scenario())


def test_built_in_service_supports_required_versions(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            assert await client_of(c).max_version(SERVICE) == "3.71"
            await client_of(c).check_version("3.68", SERVICE)
            with pytest.raises(VolumeServiceTooOld, match=r"up to 3.71, and 3.99 is needed"):
                await client_of(c).check_version("3.99", SERVICE)

    run(scenario())


@pytest.mark.parametrize(("newest", "says"), [("3.60", "up to 3.60"), ("3.9", "up to 3.9"), ("", "up to 3.0")])
def test_check_version_refuses_old_services(newest: str, says: str) -> None:
    client, _ = scripted(300, {"versions": [{"id": "v2.0", "version": ""}, {"id": "v3.0", "version": newest}]})
    with pytest.raises(VolumeServiceTooOld, match=says):
        run(client.check_version("3.68", SERVICE))


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, b"<html>", VolumeError),
        (200, {"versions": [{"id": "v2.0"}]}, VolumeError),
        (200, [], VolumeError),
        (503, b"", Unreachable),
    ],
)
def test_max_version_of_invalid_response(status: int, body: Any, error: type[Exception]) -> None:
    client, _ = scripted(status, body)
    with pytest.raises(error):
        run(client.max_version(SERVICE))


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (409, {"conflictingRequest": {"code": 409, "message": "No."}}, VolumeError, "No."),
        (400, b"nonsense", VolumeError, "answered 400"),
        (200, b"<html>", Unreachable, "invalid response"),
        (500, {"computeFault": {"message": "Oh."}}, Unreachable, "Oh."),
        (429, {"overLimit": {"message": "Slow down."}}, Unreachable, "Slow down."),
    ],
)
def test_errors_are_refused_or_unreachable(status: int, body: Any, error: type[Exception], words: str) -> None:
    client, _ = scripted(status, body)
    with pytest.raises(error, match=words):
        run(client.create({"size": 1}, MEMBER))


def test_headers_and_path_of_requests() -> None:
    client, service = scripted(200, {"attachment": {"id": "a", "connection_info": None}})
    found = run(client.attachment("a/b", SERVICE))
    assert (found, found.connection) == (Attachment("a"), {})
    run(client.attachment("a", Auth("t", None)))
    (_, path, headers), (_, bare, others) = service.requests
    assert (path, bare) == (f"/v3/{ADMIN}/attachments/a%2Fb", "/v3/attachments/a")
    assert (headers["X-Auth-Token"], headers["X-Service-Token"]) == ("kilonova", "kilonova")
    assert headers["OpenStack-API-Version"] == "volume 3.44"
    assert "X-Service-Token" not in others


def test_latest_message_of_volume(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id, client = new_id(), client_of(c)
            assert await client.latest_message(volume_id, MEMBER) is None
            for at, text in ((1.0, "old"), (3.0, "new"), (2.0, "between")):
                await put_message(c.db, resource_id=volume_id, created_at=at, text=text)
            await put_message(c.db, created_at=4.0, text="of another")
            found = await client.latest_message(volume_id, MEMBER)
            assert found is not None
            assert found.user_message == "new"
            assert await client.latest_message(volume_id, SERVICE) is None, "the message belongs to another project"

    run(scenario())


def test_latest_message_ignores_errors() -> None:
    async def scenario() -> None:
        for status, body in ((404, {}), (406, {"e": {"message": "too old"}}), (500, {}), (200, [1]), (200, b"{")):
            client, service = scripted(status, body)
            assert await client.latest_message("x", MEMBER) is None
            method, path, headers = service.requests[0]
            assert (method, path.partition("?")[0]) == ("GET", f"/v3/{DEMO}/messages")
            assert headers["OpenStack-API-Version"] == "volume 3.5"

    run(scenario())
