"""GET /os-migrations: policies, filters, pages, and the fields of each version."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.compute.migrations import queries, status
from tests.compute.migrations.support import flavor, insert_move, put_move
from tests.support import run
from tests.support.cloud import DEMO, OTHER, Cloud, cloud, fault
from tests.support.route_coverage import proves

A, B, C = (letter * 8 + "-1111-1111-1111-111111111111" for letter in "abc")
FAILURE = {"type": "Failed", "message": "No valid host was found: 2 are full", "fault": "host2 is full"}
CANCEL = {"type": "Cancelled", "message": "Cancelled by request", "fault": None}
FIRST_FIELDS = {
    *("id", "instance_uuid", "status", "created_at", "updated_at", "old_instance_type_id", "new_instance_type_id"),
    *("source_compute", "source_node", "dest_compute", "dest_host", "dest_node"),
}
HOST_FIELDS = ("source_compute", "source_node", "dest_compute", "dest_host", "dest_node")


async def listed(c: Cloud, query: str = "", as_: str = "admin", version: str = "2.80") -> list[dict[str, Any]]:
    answer = await c.get(f"/os-migrations{query}", as_=as_, version=version)
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["migrations"]
    return found


async def some(c: Cloud) -> dict[str, str]:
    """Insert migrations of all kinds; their uuids by name, oldest first."""
    return {
        "resize": await put_move(c, A, "resize", state="done", step="hand over", at=1000.0, outcome="confirmed"),
        "failed": await put_move(c, B, state="failed", at=2000.0, error=FAILURE, dest_host="host3"),
        "other": await put_move(
            c, C, "evacuation", state="done", at=3000.0, project_id=OTHER, user_id="other-id", source_host="host9"
        ),
        "running": await put_move(c, A, step="migrate guest", at=4000.0, updated_at=4500.0, user_id="manager-id"),
    }


@proves("GET /os-migrations")
def test_all_fields(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            uuid = await put_move(c, A, "resize", state="done", at=1000.0, updated_at=1234.5)
            flavors = await c.db.fetch("SELECT id FROM flavors WHERE flavor_id IN ('1', '2') ORDER BY flavor_id")
            assert await listed(c, version="2.105") == [
                {
                    "id": 1,
                    "uuid": uuid,
                    "instance_uuid": A,
                    "migration_type": "resize",
                    "status": "finished",
                    "source_compute": "host1",
                    "source_node": "host1.example",
                    "dest_compute": "host2",
                    "dest_host": "10.0.0.1",
                    "dest_node": "host2.example",
                    "old_instance_type_id": flavors[0]["id"],
                    "new_instance_type_id": flavors[1]["id"],
                    "user_id": "member-id",
                    "project_id": DEMO,
                    "created_at": "1970-01-01T00:16:40.000000",
                    "updated_at": "1970-01-01T00:20:34.500000",
                    "reason": None,
                }
            ]

    run(scenario())


@pytest.mark.parametrize(
    "version, more",
    [
        ("2.1", set()),
        ("2.22", set()),
        ("2.23", {"migration_type"}),
        ("2.58", {"migration_type"}),
        ("2.59", {"migration_type", "uuid"}),
        ("2.80", {"migration_type", "uuid", "user_id", "project_id"}),
        ("2.104", {"migration_type", "uuid", "user_id", "project_id"}),
        ("2.105", {"migration_type", "uuid", "user_id", "project_id", "reason"}),
    ],
)
def test_fields_by_version(sqlite_url: str, version: str, more: set[str]) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            await put_move(c, A, state="done")
            await put_move(c, A, step="migrate guest")
            ended, running = sorted(await listed(c, version=version), key=lambda each: each["id"])
            assert ended.keys() == FIRST_FIELDS | more
            assert running.keys() == ended.keys() | ({"links"} if "migration_type" in more else set())

    run(scenario())


def test_only_running_live_migrations_have_links(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            for step in ("claim", "bind ports", "migrate guest", "move ports"):
                await put_move(c, A, step=step)
            for state in ("done", "failed", "cancelled"):
                await put_move(c, A, state=state)
            await put_move(c, A, state="undoing", error=FAILURE)
            await put_move(c, A, "resize", step="park guest")
            shown = await listed(c)
            assert [each["id"] for each in shown if "links" in each] == [4, 3, 2, 1]
            path = f"/servers/{A}/migrations/1"
            assert [link["rel"] for link in shown[-1]["links"]] == ["self", "bookmark"]
            assert all(link["href"].endswith(path) for link in shown[-1]["links"])

    run(scenario())


def test_deleted_flavor_and_missing_destination_are_null(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:
            nowhere = {"dest_host": None, "dest_node": None}
            await put_move(c, A, "resize", state="failed", error=FAILURE, old_flavor=flavor("gone"), **nowhere)
            (shown,) = await listed(c)
            assert shown["old_instance_type_id"] is None
            assert shown["new_instance_type_id"] is not None
            assert [shown[name] for name in ("dest_compute", "dest_host", "dest_node")] == [None] * 3

    run(scenario())


@pytest.mark.parametrize(
    "values, shown",
    [
        ({"state": "failed", "error": FAILURE}, "No valid host was found: 2 are full"),
        ({"state": "undoing", "error": FAILURE}, "No valid host was found: 2 are full"),
        ({"state": "cancelled", "error": CANCEL}, "Cancelled by request"),
        ({"state": "undoing", "error": FAILURE, "undo_to": "choose host"}, None),
        ({"state": "done"}, None),
    ],
)
def test_reason_is_the_public_message(sqlite_url: str, values: dict[str, Any], shown: str | None) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            await put_move(c, A, **values)
            for who in ("admin", "manager"):
                assert [each["reason"] for each in await listed(c, as_=who, version="2.105")] == [shown]

    run(scenario())


# Policies


@pytest.mark.parametrize(
    "who, sees",
    [
        ("admin", {"resize", "failed", "other", "running"}),
        ("system", {"resize", "failed", "other", "running"}),
        ("project-admin", {"resize", "failed", "other", "running"}),
        ("manager", {"resize", "failed", "running"}),
        ("member", 403),
        ("reader", 403),
        ("other", 403),
    ],
)
@pytest.mark.parametrize("version", ["2.1", "2.80"])
def test_managers_see_the_migrations_of_their_project(
    database_url: str, who: str, sees: set[str] | int, version: str
) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            made = await some(c)
            answer = await c.get("/os-migrations", as_=who, version=version)
            if isinstance(sees, int):
                assert fault(answer)[0] == sees
            else:
                assert answer.status == 200, answer.body
                numbers = {name: place for place, name in enumerate(made, 1)}
                assert {each["id"] for each in answer.json()["migrations"]} == {numbers[name] for name in sees}

    run(scenario())


def test_only_administrators_see_hosts(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            await some(c)
            for shown in await listed(c, as_="manager"):
                assert [shown[name] for name in HOST_FIELDS] == [None] * 5
            assert all(shown[name] for shown in await listed(c) for name in HOST_FIELDS if name != "dest_host")
            for guess in ("host=host1", "source_compute=host1"):
                status, _, message = fault(await c.get(f"/os-migrations?{guess}", as_="manager", version="2.80"))
                assert (status, "index:host" in message) == (403, True)

    run(scenario())


@pytest.mark.parametrize("project, expected", [(DEMO, 3), (OTHER, 403)])
def test_managers_may_only_filter_by_own_project(database_url: str, project: str, expected: int) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await some(c)
            answer = await c.get(f"/os-migrations?project_id={project}", as_="manager", version="2.80")
            assert (len(answer.json()["migrations"]) if answer.status == 200 else answer.status) == expected

    run(scenario())


# Filters


@pytest.mark.parametrize(
    "query, found",
    [
        ("host=host1", {"resize", "failed", "running"}),
        ("host=host2", {"resize", "other", "running"}),
        ("host=host3", {"failed"}),
        ("host=nowhere", set()),
        ("source_compute=host9", {"other"}),
        ("source_compute=host2", set()),
        (f"instance_uuid={A}", {"resize", "running"}),
        ("instance_uuid=nobody", set()),
        ("migration_type=live-migration", {"failed", "running"}),
        ("migration_type=evacuation", {"other"}),
        ("migration_type=teleportation", set()),
        ("status=confirmed", {"resize"}),
        ("status=failed", {"failed"}),
        ("status=done", {"other"}),
        ("status=running", {"running"}),
        ("status=error", set()),
        ("status=unheard-of", set()),
        ("hidden=0", {"resize", "failed", "other", "running"}),
        ("hidden=true", set()),
        ("user_id=manager-id", {"running"}),
        (f"project_id={OTHER}", {"other"}),
        (f"project_id={DEMO}&user_id=member-id", {"resize", "failed"}),
        (f"instance_uuid={A}&status=running&host=host2", {"running"}),
        ("changes-since=1970-01-01T00:50:00Z", {"other", "running"}),
        ("changes-since=1970-01-01T01:15:00Z", {"running"}),
        ("changes-since=1970-01-01T01:15:00.000001Z", set()),
        ("changes-before=1970-01-01T00:50:00Z", {"resize", "failed", "other"}),
        ("changes-since=1970-01-01T00:20:00Z&changes-before=1970-01-01T00:40:00Z", {"failed"}),
    ],
)
def test_filters(database_url: str, query: str, found: set[str]) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            made = await some(c)
            names = {uuid: name for name, uuid in made.items()}
            assert {names[each["uuid"]] for each in await listed(c, f"?{query}")} == found

    run(scenario())


def test_confirm_and_revert_change_updated_at(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await put_move(c, A, "resize", state="done", at=1000.0)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE moves SET outcome = 'confirmed', updated_at = 2000")
            (shown,) = await listed(c, "?changes-since=1970-01-01T00:33:20Z")
            assert shown["updated_at"] == "1970-01-01T00:33:20.000000"

    run(scenario())


STATES: list[dict[str, Any]] = [
    *(
        {"type": type, "state": "running", "step": step}
        for type, words in status.STATUS_NAMES.items()
        for step in words.steps
    ),
    *(
        {"type": type, "state": state, "error": error}
        for type in status.STATUS_NAMES
        for state, error in (("undoing", FAILURE), ("failed", FAILURE), ("cancelled", CANCEL), ("done", None))
    ),
    *({"type": type, "state": "undoing", "step": "claim", "error": CANCEL} for type in status.STATUS_NAMES),
    *({"type": type, "state": "undoing", "error": FAILURE, "undo_to": "claim"} for type in status.STATUS_NAMES),
    *(
        {"type": type, "state": "done", "outcome": outcome}
        for type, words in status.STATUS_NAMES.items()
        for outcome in words.outcomes
    ),
]


def test_status_filter_finds_every_status(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            async with c.db.transaction() as tx:
                for values in STATES:
                    await insert_move(tx, A, **values)
                await insert_move(tx, B, "resize", state="done")
                await insert_move(tx, C, "migration", state="done")
                for server_id, kind in ((B, "confirm_resize"), (C, "revert_resize")):
                    await insert_move(tx, server_id, "resize", state="queued")
                    await tx.execute(
                        "UPDATE operations SET kind = $2 WHERE server_id = $1 AND state = 'queued'", server_id, kind
                    )
            shown = await listed(c)
            assert len(shown) == len(STATES) + 4
            words = {each["status"] for each in shown}
            assert {"confirming", "reverting", "error", "queued", "completed"} <= words
            for word in words:
                expected = [each["id"] for each in shown if each["status"] == word]
                assert [each["id"] for each in await listed(c, f"?status={word}")] == expected

    run(scenario())


# Pages


def test_status_filter_reads_in_batches(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "BATCH", 3)

    async def scenario() -> None:
        async with cloud(database_url) as c:
            async with c.db.transaction() as tx:
                for number in range(20):
                    step = "migrate guest" if number % 5 == 0 else "claim"
                    await insert_move(tx, A, "live-migration", step=step, at=1000.0 + number)
            assert [each["id"] for each in await listed(c, "?status=running")] == [16, 11, 6, 1]
            assert [each["id"] for each in await listed(c, "?status=running", version="2.1")] == [1, 6, 11, 16]
            assert [each["id"] for each in await listed(c)] == list(range(20, 0, -1))
            assert [each["id"] for each in await listed(c, version="2.58")] == list(range(1, 21))
            first = (await c.get("/os-migrations?status=running&limit=3", as_="admin", version="2.59")).json()
            assert [each["id"] for each in first["migrations"]] == [16, 11, 6]
            rest = first["migrations_links"][0]["href"].partition("/v2.1")[2]
            assert [each["id"] for each in await listed(c, rest.removeprefix("/os-migrations"))] == [1]

    run(scenario())


def test_pages(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, api__max_limit=3) as c:
            made = list((await some(c)).values())
            page = (await c.get("/os-migrations?limit=2", as_="admin", version="2.59")).json()
            assert [each["uuid"] for each in page["migrations"]] == [made[3], made[2]]
            assert page["migrations_links"][0]["href"].endswith(f"/os-migrations?limit=2&marker={made[2]}")
            assert [each["uuid"] for each in await listed(c, f"?marker={made[2]}")] == [made[1], made[0]]
            assert len(await listed(c)) == 3
            assert len(await listed(c, "?limit=1000")) == 3
            assert await listed(c, "?limit=0") == []
            last = (await c.get(f"/os-migrations?marker={made[1]}", as_="admin", version="2.59")).json()
            assert "migrations_links" not in last
            # Pages of managers have migrations of their project only.
            assert [each["uuid"] for each in await listed(c, f"?marker={made[3]}", as_="manager")] == [made[1], made[0]]

    run(scenario())


def test_no_pages_below_2_59(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, api__max_limit=3) as c:
            await some(c)
            for version in ("2.1", "2.58"):
                answer = await c.get("/os-migrations?limit=1&marker=x&unheard=of", as_="admin", version=version)
                assert [each["id"] for each in answer.json()["migrations"]] == [1, 2, 3, 4]
                assert "migrations_links" not in answer.json()

    run(scenario())


@pytest.mark.parametrize(
    "query, version",
    [
        ("marker=11111111-1111-1111-1111-111111111111", "2.59"),
        ("limit=-1", "2.59"),
        ("limit=x", "2.59"),
        ("changes-since=yesterday", "2.59"),
        ("changes-before=2026-01-01T00:00:00Z", "2.65"),
        ("changes-before=yesterday", "2.66"),
        ("changes-since=2026-01-02T00:00:00Z&changes-before=2026-01-01T00:00:00Z", "2.66"),
        ("user_id=x", "2.79"),
        ("project_id=x", "2.79"),
        ("unheard=of", "2.59"),
        ("limit=x&limit=1", "2.59"),
    ],
)
def test_invalid_queries_are_refused(database_url: str, query: str, version: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await some(c)
            assert fault(await c.get(f"/os-migrations?{query}", as_="admin", version=version))[0] == 400

    run(scenario())


def test_marker_of_another_project_is_refused_for_managers(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            other = (await some(c))["other"]
            nobody = "11111111-1111-1111-1111-111111111111"
            for marker in (other, nobody):
                status, _, message = fault(
                    await c.get(f"/os-migrations?marker={marker}", as_="manager", version="2.59")
                )
                assert (status, message) == (400, f"marker [{marker}] not found")

    run(scenario())
