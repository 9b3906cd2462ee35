"""Revision 0006 renames kinds and steps of stored operations, so that unfinished ones continue."""

from __future__ import annotations

from importlib import import_module

import orjson
import pytest

import kilonova.compute.operations
import kilonova.volume.operations  # noqa: F401  registers the operations
from kilonova.operations.definition import find_kind
from kilonova.store.migrate import upgrade
from tests.store.revisions import create_at
from tests.store.test_migrate import both_empty, insert_statement
from tests.support import run
from tests.support.databases import opened

REVISION = import_module("kilonova.store.migrations.versions.0006_operation_kinds")


def former_steps(kind: str) -> list[str]:
    """The steps of an operation as the release before named them."""
    operation = find_kind(kind)
    assert operation is not None, kind
    former = {new: old for old, new in REVISION.STEPS.get(kind, {}).items()}
    return [former.get(name, name) for name in operation.table().names]


async def write_former_rows(url: str) -> None:
    """One operation per kind, at its first step, with a result and an executed step of every step."""
    kinds = {**REVISION.KINDS, "live_migrate": "live_migrate", "boot": "boot"}
    async with opened(url) as db, db.transaction() as tx:
        for seq, (old, new) in enumerate(kinds.items(), 1):
            names = former_steps(new)
            row = {
                "plan": orjson.dumps(names).decode(),
                "results": orjson.dumps({name: {"value": name} for name in names}).decode(),
                "params": "{}",
                "note": "{}",
            }
            sql, args = insert_statement(
                "operations", seq=seq, id=new, kind=old, step=names[0], undo_to=names[-1], state="queued", **row
            )
            await tx.execute(sql, *args)
            for name in names:
                step = {"operation_id": new, "name": name, "round": 1, "phase": "do"}
                await tx.execute(*flatten(insert_statement("operation_steps", **step)))
        wait = {"operation_id": "live_migrate", "name": "take turn", "key": "turn of live_migrate"}
        await tx.execute(*flatten(insert_statement("operation_waits", **wait)))
        event = {"seq": 1, "key": "turn of another", "payload": "{}"}
        await tx.execute(*flatten(insert_statement("operation_events", **event)))


def flatten(statement: tuple[str, list[object]]) -> list[object]:
    return [statement[0], *statement[1]]


@both_empty
def test_operations_of_the_former_release_get_known_kinds_and_steps(empty_url: str) -> None:
    async def scenario() -> None:
        await create_at(empty_url, "0005")
        await write_former_rows(empty_url)
        await upgrade(empty_url)
        async with opened(empty_url) as db:
            rows = await db.fetch("SELECT * FROM operations")
            assert len(rows) == len(REVISION.KINDS) + 2
            for row in rows:
                operation = find_kind(row["kind"])
                assert operation is not None, row["kind"]
                names = operation.table().names
                assert row["id"] == row["kind"]
                assert [step.name for step in operation.table().plan(row["plan"], row["step"])] == names
                assert (row["step"], row["undo_to"]) == (names[0], names[-1])
                assert list(orjson.loads(row["results"])) == names
                executed = await db.fetch("SELECT name FROM operation_steps WHERE operation_id = $1", row["id"])
                assert {step["name"] for step in executed} == set(names)
            (wait,) = await db.fetch("SELECT name, key FROM operation_waits")
            assert wait == {"name": "wait for slot", "key": "live-migration slot of live_migrate"}
            assert await db.fetch_value("SELECT key FROM operation_events") == "live-migration slot of another"

    run(scenario())


@pytest.mark.parametrize(("old", "new"), REVISION.KINDS.items())
def test_former_kind_is_unknown_and_new_kind_known(old: str, new: str) -> None:
    assert find_kind(old) is None
    assert find_kind(new) is not None
