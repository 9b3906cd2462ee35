"""`kilonova db`: create, upgrade and inspect the database."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from kilonova.cli import options
from kilonova.store import StoreError
from kilonova.store.url import dialect_of, sqlite_path

T = TypeVar("T")

which = options.together(options.data, options.database, options.file)


@click.group()
def db() -> None:
    """Create, upgrade and inspect the database."""


@db.command()
@which
def upgrade(file: Path | None, **flags: Any) -> None:
    """Create the schema, or bring it to this release. Safe to run again, and from several machines at once.

    Processes of an older release should be stopped first.
    """
    from kilonova.store.migrate import upgrade as bring_to_head

    url = _url(file, flags)
    done = _run(bring_to_head(url))
    if done.before is None:
        click.echo(f"{_shown(url)}: created, schema {done.after}")
    elif done.before == done.after:
        click.echo(f"{_shown(url)}: schema {done.after} is current, nothing to do")
    else:
        click.echo(f"{_shown(url)}: upgraded from schema {done.before} to {done.after}")


@db.command()
@which
def status(file: Path | None, **flags: Any) -> None:
    """Say which schema the database has. The exit code is 0 if it is this release's, 1 otherwise."""
    from kilonova.store.migrate import revision
    from kilonova.store.migrations.head import HEAD

    url = _url(file, flags)
    current = _run(revision(url))
    if current == HEAD:
        click.echo(f"{_shown(url)}: schema {HEAD} is current")
        return
    found = "no schema yet" if current is None else f"schema {current}"
    raise options.Failure(f"{_shown(url)}: {found}; this release has {HEAD}, `kilonova db upgrade` brings it there")


def _url(file: Path | None, flags: dict[str, Any]) -> str:
    return options.load(file, **flags).database_url


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except (StoreError, ValueError, OSError) as error:
        raise options.Failure(str(error)) from None


def _shown(url: str) -> str:
    """The file, or the URL without a password."""
    if dialect_of(url) == "sqlite":
        return str(sqlite_path(url))
    head, at, rest = url.rpartition("@")
    if not at:
        return url
    scheme, _, user = head.partition("://")
    return f"{scheme}://{user.partition(':')[0]}@{rest}"
