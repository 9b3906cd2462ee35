"""External events: policies, the code of each event, and the operations that events begin."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from kilonova.ids import new_id
from kilonova.store import Database
from tests.support import run
from tests.support.cloud import Cloud, cloud, fault, put_server
from tests.support.route_coverage import proves

PATH = "/os-server-external-events"
VOLUME = "11111111-1111-1111-1111-111111111111"


async def send(c: Cloud, *events: dict[str, Any], as_: str = "service", version: str = "2.93") -> Any:
    return await c.post(PATH, {"events": list(events)}, as_=as_, version=version)


async def put(c: Cloud, **values: Any) -> str:
    server_id = new_id()
    await put_server(c.db, server_id, **values)
    return server_id


async def stored_events(db: Database) -> dict[str, Any]:
    """The keys of stored events."""
    rows = await db.fetch("SELECT key, payload FROM operation_events")
    return {row["key"]: orjson.loads(row["payload"]) for row in rows}


async def begun_operations(db: Database) -> list[tuple[str, str, Any]]:
    rows = await db.fetch("SELECT kind, server_id, params FROM operations ORDER BY seq")
    return [(row["kind"], row["server_id"], orjson.loads(row["params"])) for row in rows]


@proves("POST /os-server-external-events")
def test_events_are_stored_for_waiting_operations(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            server_id = await put(c, host="host1")
            plugged = {"name": "network-vif-plugged", "server_uuid": server_id, "tag": "port"}
            reimaged = {"name": "volume-reimaged", "server_uuid": server_id, "tag": VOLUME, "status": "failed"}
            changed = {"name": "network-changed", "server_uuid": server_id}
            answer = await send(c, plugged, reimaged, changed)
            assert answer.status == 200
            assert answer.json()["events"] == [
                {**plugged, "status": "completed", "code": 200},
                {**reimaged, "code": 200},
                {**changed, "status": "completed", "code": 200},
            ]
            assert await stored_events(c.db) == {
                f"network-vif-plugged:{server_id}:port": {"status": "completed"},
                f"volume-reimaged:{server_id}:{VOLUME}": {"status": "failed"},
                f"network-changed:{server_id}:": {"status": "completed"},
            }

    run(scenario())


def test_each_event_has_its_own_code(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            placed, homeless, deleted = await put(c, host="host1"), await put(c), await put(c, host="h", deleted=True)
            asked = [
                {"name": "network-changed", "server_uuid": placed, "tag": "a"},
                {"name": "network-changed", "server_uuid": homeless},
                {"name": "network-changed", "server_uuid": deleted},
                {"name": "network-changed", "server_uuid": VOLUME},
                {"name": "volume-extended", "server_uuid": placed},
                {"name": "volume-reimaged", "server_uuid": placed},
                {"name": "power-update", "server_uuid": placed, "tag": "POWER_HIGH"},
            ]
            answer = await send(c, *asked, as_="admin")
            assert answer.status == 207
            told = [(event["code"], event["status"]) for event in answer.json()["events"]]
            assert told == [(200, "completed"), *((code, "failed") for code in (422, 404, 404, 400, 400, 400))]
            assert list(await stored_events(c.db)) == [f"network-changed:{placed}:a"]
            assert await begun_operations(c.db) == []

    run(scenario())


def test_volume_extended_begins_an_operation(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            server_id = await put(c, host="host1")
            event = {"name": "volume-extended", "server_uuid": server_id, "tag": VOLUME}
            assert (await send(c, {**event, "status": "failed"})).status == 200
            assert await begun_operations(c.db) == []
            assert (await send(c, event, version="2.51")).status == 200
            assert await begun_operations(c.db) == [("extend_volume", server_id, {"volume_id": VOLUME})]
            assert await stored_events(c.db) == {}

    run(scenario())


@pytest.mark.parametrize(
    ("name", "version", "before"),
    [
        ("volume-extended", "2.51", "2.50"),
        ("power-update", "2.76", "2.75"),
        ("accelerator-request-bound", "2.82", "2.81"),
    ],
)
def test_event_names_by_version(sqlite_url: str, name: str, version: str, before: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            event = {"name": name, "server_uuid": await put(c, host="host1"), "tag": "POWER_ON"}
            status, kind, message = fault(await send(c, event, version=before))
            assert (status, kind) == (400, "badRequest")
            assert name in message
            assert (await send(c, event, version=version)).status == 200

    run(scenario())


def test_only_services_and_administrators_may_send_events(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            event = {"name": "network-changed", "server_uuid": await put(c, host="host1")}
            for caller in ("member", "manager"):
                assert (await send(c, event, as_=caller)).status == 403
            bodies: list[Any] = [{}, {"events": []}, {"events": [{"name": event["name"]}]}, {"events": [event], "x": 1}]
            for wrong in bodies:
                assert (await c.post(PATH, wrong, as_="service")).status == 400
            assert await stored_events(c.db) == {}

    run(scenario())
