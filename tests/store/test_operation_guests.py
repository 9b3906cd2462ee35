"""Revision 0007 copies the guest of deferred operations from their params to a column."""

from __future__ import annotations

from importlib import import_module

import orjson

from kilonova.store.migrate import upgrade
from tests.store.revisions import create_at
from tests.store.test_migrate import both_empty, insert_statement
from tests.support import run
from tests.support.databases import opened

REVISION = import_module("kilonova.store.migrations.versions.0007_operation_guests")


@both_empty
def test_deferred_operations_get_their_guest(empty_url: str) -> None:
    async def scenario() -> None:
        await create_at(empty_url, "0006")
        kinds = (*REVISION.KINDS, "boot")
        rows = [(kind, finished_at) for kind in kinds for finished_at in (None, 7.0)]
        async with opened(empty_url) as db, db.transaction() as tx:
            for seq, (kind, finished_at) in enumerate(rows, 1):
                params = orjson.dumps({"host": "one", "guest_id": f"guest {seq}"}).decode()
                given = {"seq": seq, "id": str(seq), "kind": kind, "params": params, "finished_at": finished_at}
                sql, args = insert_statement("operations", **given)
                await tx.execute(sql, *args)
        await upgrade(empty_url)
        async with opened(empty_url) as db:
            stored = await db.fetch("SELECT seq, kind, guest_id FROM operations ORDER BY seq")
        assert len(stored) == len(rows)
        for row in stored:
            assert row["guest_id"] == (None if row["kind"] == "boot" else f"guest {row['seq']}")

    run(scenario())
