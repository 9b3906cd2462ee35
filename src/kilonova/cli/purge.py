"""`kilonova db purge`: deletes rows that have served their time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from kilonova.cli import options
from kilonova.config import Config


@click.command()
@click.option("--dry-run", is_flag=True, help="Only count what would be deleted.")
@click.option(
    "--older-than",
    metavar="DAYS",
    type=click.FloatRange(min=0),
    help="Delete what is older, instead of the days of [retention].",
)
@click.option("--table", "tables", metavar="TABLE", multiple=True, help="Only this table; may be repeated.")
@options.combine(options.data, options.database, options.file)
def purge(dry_run: bool, older_than: float | None, tables: tuple[str, ...], file: Path | None, **flags: object) -> None:
    """Delete old rows: deleted servers, finished operations, attempts, messages and what has expired.

    The cloud may run meanwhile. Objects that exist, unfinished operations and what they need always stay.
    """
    from kilonova.purge import TABLES
    from kilonova.store import StoreError

    for table in tables:
        if table not in TABLES:
            raise click.BadParameter(f"{table!r} is not one of {', '.join(TABLES)}", param_hint="--table")
    config = options.load(file, **flags)
    if not config.database and not (config.data_dir / "kilonova.db").is_file():
        raise options.Failure(f"--data: no database in {config.data}")
    try:
        counts = asyncio.run(_purge(config, tables or TABLES, older_than, dry_run))
    except (StoreError, ValueError, OSError) as error:
        raise options.Failure(str(error)) from None
    for table, number in counts.items():
        click.echo(f"{table:22}{number:>10}")
    click.echo(f"{sum(counts.values())} rows {'would be deleted' if dry_run else 'deleted'}")


async def _purge(config: Config, tables: tuple[str, ...], older_than: float | None, dry_run: bool) -> dict[str, int]:
    from kilonova.purge import purge
    from kilonova.store import open_database
    from kilonova.store.migrate import revision
    from kilonova.store.migrations.head import HEAD

    if await revision(config.database_url) != HEAD:
        raise options.Failure(f"the database does not have the schema {HEAD}; run `kilonova db upgrade`")
    db = await open_database(config.database_url)
    try:
        return await purge(db, config.retention, tables=tables, older_than_days=older_than, dry_run=dry_run)
    finally:
        await db.close()
