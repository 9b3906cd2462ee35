"""`kilonova backup` and `kilonova restore`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from kilonova import datadir
from kilonova.backup.manifest import BackupError, Manifest
from kilonova.cli import exclusive, options
from kilonova.store import StoreError

T = TypeVar("T")

_directory = click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))


@click.command()
@options.combine(_directory, options.data, options.database, options.file)
def backup(directory: Path, file: Path | None, **flags: object) -> None:
    """Write a backup of a cloud, running or stopped, to the new directory DIR.

    It has the database, the state of simulated hosts, keys and passwords, images and volumes. A volume that a guest
    writes to meanwhile is like after a power cut at best: see docs/operations.md.
    """
    from kilonova.backup.create import create

    written = _run(create(options.load(file, **flags), directory))
    click.echo(f"{directory}: {_summary(written)}")
    for path in written.missing:
        click.echo(f"warning: {path} is missing in the cloud, so it is not in the backup", err=True)


@click.command()
@options.combine(_directory, options.data, options.database, options.file)
@click.option("--force", is_flag=True, help="Replace the present data. Its files are moved to DATA/replaced-….")
def restore(directory: Path, file: Path | None, force: bool, **flags: object) -> None:
    """Restore the backup in DIR into an empty data directory and database. Stop all processes of the cloud first.

    Hosts accept the restored database, and `kilonova doctor` shows what they have done since the backup.
    """
    from kilonova.backup import restore as restoring

    config = options.load(file, **flags)
    found = _call(lambda: restoring.check(config, directory))
    _call(lambda: datadir.prepare(config.data_dir))
    with exclusive.stopped_cloud(config):
        if not force and not _run(restoring.is_empty(config)):
            raise options.Failure(
                f"{config.data_dir} or its database has data already: choose an empty one, or replace it with --force"
            )
        replaced = _run(restoring.restore(config, directory, found))
    click.echo(f"{config.data_dir}: restored {_summary(found)}, of {found.created_at}")
    if replaced is not None:
        click.echo(f"the replaced files are in {replaced}")


def _summary(manifest: Manifest) -> str:
    size = manifest.size / 2**20
    return f"{len(manifest.files)} files, {size:.1f} MiB, {manifest.database} with schema {manifest.schema}"


def _run(work: Coroutine[Any, Any, T]) -> T:
    return _call(lambda: asyncio.run(work))


def _call(work: Callable[[], T]) -> T:
    try:
        return work()
    except (BackupError, StoreError, ValueError, OSError) as error:
        raise options.Failure(options.one_reason_per_line(str(error))) from None
