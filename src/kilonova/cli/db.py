"""`kilonova db`: create, upgrade and inspect the database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

import click

from kilonova.cli import exclusive, options
from kilonova.cli.purge import purge
from kilonova.store import StoreError
from kilonova.store.url import dialect_of, sqlite_path

T = TypeVar("T")

database_options = options.combine(options.data, options.database, options.file)


@click.group()
def db() -> None:
    """Create, upgrade, inspect and purge the database."""


db.add_command(purge)


@db.command()
@database_options
@click.option("--force", is_flag=True, help="Upgrade even if processes of an older release use the database.")
def upgrade(file: Path | None, force: bool, **flags: object) -> None:
    """Create the schema, or upgrade it to this release. Safe to repeat, and to run on several machines at once.

    Stop the processes of an older release first: the command refuses to upgrade while they run.
    """
    from kilonova.store.migrate import revision
    from kilonova.store.migrate import upgrade as upgrade_to_head
    from kilonova.store.migrations.head import HEAD

    config = options.load(file, **flags)
    url = config.database_url
    with contextlib.ExitStack() as stack:
        if not force and _run(revision(url)) not in (None, HEAD) and dialect_of(url) == "sqlite":
            stack.enter_context(exclusive.locked_directory(config))
        done = _run(upgrade_to_head(url, force=force))
    if done.before is None:
        click.echo(f"{_display_url(url)}: created, schema {done.after}")
    elif done.before == done.after:
        click.echo(f"{_display_url(url)}: schema {done.after} is current, nothing to do")
    else:
        click.echo(f"{_display_url(url)}: upgraded from schema {done.before} to {done.after}")


@db.command()
@database_options
def adopt(file: Path | None, **flags: object) -> None:
    """Accept a database that is older than its hosts, after it was restored by hand.

    The hosts then forget the commands of the lost time. `kilonova restore` does this by itself.
    """
    from kilonova.store.incarnation import renew
    from kilonova.store.migrate import revision
    from kilonova.store.migrate import upgrade as upgrade_to_head

    config = options.load(file, **flags)
    url = config.database_url
    if _run(revision(url)) is None:
        raise options.Failure(f"{_display_url(url)}: no schema yet")
    with exclusive.stopped_cloud(config):
        _run(upgrade_to_head(url))
        _run(renew(url))
    click.echo(f"{_display_url(url)}: hosts accept this database from now on")


@db.command()
@database_options
def status(file: Path | None, **flags: object) -> None:
    """Show the schema of the database. The exit code is 0 if it is the schema of this release, 1 otherwise."""
    from kilonova.store.migrate import revision
    from kilonova.store.migrations.head import HEAD

    url = _url(file, flags)
    current = _run(revision(url))
    if current == HEAD:
        click.echo(f"{_display_url(url)}: schema {HEAD} is current")
        return
    found = "no schema yet" if current is None else f"schema {current}"
    raise options.Failure(f"{_display_url(url)}: {found}; this release needs {HEAD}, run `kilonova db upgrade`")


def _url(file: Path | None, flags: dict[str, object]) -> str:
    return options.load(file, **flags).database_url


def _run(work: Coroutine[object, object, T]) -> T:
    try:
        return asyncio.run(work)
    except (StoreError, ValueError, OSError) as error:
        raise options.Failure(str(error)) from None


def _display_url(url: str) -> str:
    """The file, or the URL without its password."""
    if dialect_of(url) == "sqlite":
        return str(sqlite_path(url))
    head, at, rest = url.rpartition("@")
    if not at:
        return url
    scheme, _, user = head.partition("://")
    return f"{scheme}://{user.partition(':')[0]}@{rest}"
