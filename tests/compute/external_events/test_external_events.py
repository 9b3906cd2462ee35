"""External events: what other services tell of servers, who may, and what each is answered."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from kilonova.ids import new_id
from kilonova.store import Database
from tests.support import run
from tests.support.cloud import Cloud, cloud, fault, put_server
from tests.support.proves import proves

PATH = "/os-server-external-events"
VOLUME = "11111111-1111-1111-1111-111111111111"


async def tell(c: Cloud, *events: dict[str, Any], as_: str = "service", version: str = "2.93") -> Any:
    return await c.post(PATH, {"events": list(events)}, as_=as_, version=version)


async def put(c: Cloud, **values: Any) -> str:
    server_id = new_id()
    await put_server(c.db, server_id, **values)
    return server_id


async def kept(db: Database) -> dict[str, Any]:
    """The events that nobody waits for yet, by their keys."""
    rows = await db.fetch("SELECT key, payload FROM operation_events")
    return {row["key"]: orjson.loads(row["payload"]) for row in rows}


async def begun(db: Database) -> list[tuple[str, str, Any]]:
    rows = await db.fetch("SELECT kind, server_id, params FROM operations ORDER BY seq")
    return [(row["kind"], row["server_id"], orjson.loads(row["params"])) for row in rows]


@proves("POST /os-server-external-events")
def test_events_are_kept_for_whoever_waits_for_them(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            server_id = await put(c, host="host1")
            plugged = {"name": "network-vif-plugged", "server_uuid": server_id, "tag": "port"}
            reimaged = {"name": "volume-reimaged", "server_uuid": server_id, "tag": VOLUME, "status": "failed"}
            changed = {"name": "network-changed", "server_uuid": server_id}
            answer = await tell(c, plugged, reimaged, changed)
            assert answer.status == 200
            assert answer.json()["events"] == [
                {**plugged, "status": "completed", "code": 200},
                {**reimaged, "code": 200},
                {**changed, "status": "completed", "code": 200},
            ]
            assert await kept(c.db) == {
                f"network-vif-plugged:{server_id}:port": {"status": "completed"},
                f"volume-reimaged:{server_id}:{VOLUME}": {"status": "failed"},
                f"network-changed:{server_id}:": {"status": "completed"},
            }

    run(scenario())


def test_what_cannot_be_delivered_is_said_event_by_event(database_url: str) -> None:
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
            answer = await tell(c, *asked, as_="admin")
            assert answer.status == 207
            told = [(event["code"], event["status"]) for event in answer.json()["events"]]
            assert told == [(200, "completed"), *((code, "failed") for code in (422, 404, 404, 400, 400, 400))]
            assert list(await kept(c.db)) == [f"network-changed:{placed}:a"]
            assert await begun(c.db) == []

    run(scenario())


def test_a_volume_that_has_grown_begins_an_operation(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            server_id = await put(c, host="host1")
            event = {"name": "volume-extended", "server_uuid": server_id, "tag": VOLUME}
            assert (await tell(c, {**event, "status": "failed"})).status == 200
            assert await begun(c.db) == []
            assert (await tell(c, event, version="2.51")).status == 200
            assert await begun(c.db) == [("extend_volume", server_id, {"volume_id": VOLUME})]
            assert await kept(c.db) == {}

    run(scenario())


@pytest.mark.parametrize(
    ("name", "version", "before"),
    [
        ("volume-extended", "2.51", "2.50"),
        ("power-update", "2.76", "2.75"),
        ("accelerator-request-bound", "2.82", "2.81"),
    ],
)
def test_names_come_with_versions(sqlite_url: str, name: str, version: str, before: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            event = {"name": name, "server_uuid": await put(c, host="host1"), "tag": "POWER_ON"}
            status, kind, message = fault(await tell(c, event, version=before))
            assert (status, kind) == (400, "badRequest")
            assert name in message
            assert (await tell(c, event, version=version)).status == 200

    run(scenario())


def test_only_services_and_administrators_tell(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            event = {"name": "network-changed", "server_uuid": await put(c, host="host1")}
            for caller in ("member", "manager"):
                assert (await tell(c, event, as_=caller)).status == 403
            bodies: list[Any] = [{}, {"events": []}, {"events": [{"name": event["name"]}]}, {"events": [event], "x": 1}]
            for wrong in bodies:
                assert (await c.post(PATH, wrong, as_="service")).status == 400
            assert await kept(c.db) == {}

    run(scenario())
