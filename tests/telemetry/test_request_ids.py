"""Request ids in logs: the caller's global request id, and its way into operations and other services."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from kilonova.telemetry.logs import JsonFormatter
from tests.support import run
from tests.support.full_cloud import full_cloud

GLOBAL_ID = "req-11111111-2222-3333-4444-555555555555"


@pytest.fixture
def lines() -> Iterator[list[dict[str, str]]]:
    found: list[dict[str, str]] = []

    class RecordingHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(json.loads(self.format(record)))

    handler = RecordingHandler()
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("kilonova")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield found
    logger.setLevel(level)
    logger.removeHandler(handler)


def test_global_request_id_is_passed_to_other_services(database_url: str, lines: list[dict[str, str]]) -> None:
    async def scenario() -> str:
        async with full_cloud(database_url, hosts=1) as c:
            server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto"}
            headers = {"X-OpenStack-Request-ID": GLOBAL_ID}
            answer = await c.post("/servers", {"server": server}, version="2.96", headers=headers)
            assert answer.status == 202
            await c.wait_until_settled(answer.json()["server"]["id"])
            return answer.headers["x-openstack-request-id"]

    own = run(scenario())
    assert own != GLOBAL_ID
    caused = {line["path"]: line for line in lines if line.get("global_request_id") == GLOBAL_ID}
    assert {path.split("/")[1] for path in caused} == {"compute", "image", "network"}
    assert caused["/compute/v2.1/servers"]["request_id"] == own
    # The operation's requests carry the id of the request that began it.
    ports = [line for line in lines if line.get("path") == "/network/v2.0/ports" and line["method"] == "POST"]
    assert {line["global_request_id"] for line in ports} == {own}, "also in retries"


def test_malformed_global_request_id_is_ignored(database_url: str, lines: list[dict[str, str]]) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=0) as c:
            await c.get("/flavors", headers={"X-OpenStack-Request-ID": "req-1\x7f"})

    run(scenario())
    assert all("global_request_id" not in line for line in lines if line.get("path") == "/compute/v2.1/flavors")
