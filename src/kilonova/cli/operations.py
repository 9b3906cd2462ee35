"""`kilonova operations`: shows, cancels and retries operations."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kilonova.cli import options

if TYPE_CHECKING:
    from kilonova.operations.views import Summary


@click.command()
@click.option("--stuck", is_flag=True, help="Only operations that are stuck.")
@click.option("--server", metavar="ID", help="All operations of a server, including finished ones.")
@click.option("--cancel", metavar="OPERATION", help="Stop this operation and undo its steps.")
@click.option("--retry", metavar="OPERATION", help="Start the next attempt of this operation now.")
@options.combine(options.data, options.database, options.file)
def operations(
    stuck: bool, server: str | None, cancel: str | None, retry: str | None, file: Path | None, **flags: object
) -> None:
    """Show unfinished operations; cancel or retry one."""
    from kilonova.store import Unavailable

    config = options.load(file, **flags)
    if not config.database and not (config.data_dir / "kilonova.db").is_file():
        raise options.Failure(f"--data: no database in {config.data}")
    try:
        _show(asyncio.run(_run(config.database_url, stuck, server, cancel, retry)))
    except Unavailable as error:
        raise options.Failure(str(error)) from None


async def _run(
    url: str, stuck: bool, server: str | None, cancel: str | None, retry: str | None
) -> list[Summary] | None:
    """The operations to show; None after a change."""
    from kilonova.operations import control, views
    from kilonova.store import open_database

    db = await open_database(url)
    try:
        for operation_id, change in ((cancel, control.request_cancel), (retry, control.retry_now)):
            if operation_id is not None:
                async with db.transaction() as tx:
                    changed = await change(tx, operation_id)
                if not changed:
                    raise options.Failure(f"{operation_id}: no such operation, or it cannot be changed now")
        if cancel is not None or retry is not None:
            return None
        return await views.find_stuck(db) if stuck else await views.list_summaries(db, server)
    finally:
        await db.close()


def _show(found: list[Summary] | None) -> None:
    if found is None:
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from kilonova import clock

    now = clock.now()
    table = Table("OPERATION", "KIND", "SERVER", "HOST", "STATE", "STEP", "TRIES", "AGE", "WHY", box=box.SIMPLE_HEAD)
    for op in found:
        tries = f"{op.attempt + 1}" + (f" in round {op.round}" if op.round > 1 else "")
        age = f"{(op.finished_at or now) - op.created_at:.0f} s"
        table.add_row(op.id, op.kind, op.server_id or "", op.host or "", op.state, op.step, tries, age, op.reason or "")
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 400  # a pipe has no width, and ids must not be wrapped
    console.print(table)
