"""`kilonova keys`: lists and rotates the keys that sign tokens, and rotates those that encrypt credentials."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from kilonova.cli import options

if TYPE_CHECKING:
    from kilonova.config import Config
    from kilonova.identity.token_keys import Key, KeyFile


@click.group()
def keys() -> None:
    """List and rotate the keys that sign tokens, and rotate those that encrypt stored credentials."""


@keys.command("list")
@options.combine(options.data, options.file)
def list_keys(file: Path | None, **flags: object) -> None:
    """List the keys that sign tokens, by their ids. Keys themselves are never shown."""
    from kilonova import clock
    from kilonova.cli import tables

    config = options.load(file, **flags)
    try:
        found = _key_file(config).load()
    except (OSError, ValueError) as error:
        _fail(error)
    table = tables.make_table("ID", "CREATED", "AGE", "USE")
    for number, key in enumerate(found):
        use = "accepts older tokens" if number else "signs new tokens"
        table.add_row(key.id, clock.iso(key.created_at), _age(clock.now() - key.created_at), use)
    tables.make_console().print(table)


@keys.command()
@options.combine(options.data, options.file)
@click.option("--drop-old-keys", is_flag=True, help="Also drop all older keys. All tokens become invalid.")
def rotate(file: Path | None, drop_old_keys: bool, **flags: object) -> None:
    """Make a new key for new tokens. The cloud may be running and needs no restart.

    Older keys are kept until all tokens that they signed have expired. Rotate with --drop-old-keys if a key is known to
    others: every user must log in again.
    """
    from kilonova.identity.token_provider import EXPIRED_WINDOW_SECONDS

    config = options.load(file, **flags)
    lifetime = 0.0 if drop_old_keys else config.identity.token_seconds + EXPIRED_WINDOW_SECONDS
    try:
        (new, *kept), dropped = _key_file(config).rotate(lifetime)
    except (OSError, ValueError) as error:
        _fail(error)
    click.echo(f"created     {new.id}, which signs new tokens")
    click.echo(f"kept        {_ids(kept)}")
    click.echo(f"dropped     {_ids(dropped)}")


@keys.command("rotate-credentials")
@options.combine(options.data, options.database, options.file)
def rotate_credentials(file: Path | None, **flags: object) -> None:
    """Make a new key for stored credentials, and encrypt all of them with it. The cloud may be running.

    The key before it is kept for processes that use it at this moment; the next rotation drops it. If
    identity.credential_keys has the keys, only encrypt all credentials with the first one.
    """
    from kilonova.store import StoreError

    config = options.load(file, **flags)
    try:
        credentials, lost = asyncio.run(_rotate_credentials(config))
    except (StoreError, OSError, ValueError) as error:
        raise options.Failure(str(error)) from None
    click.echo(f"encrypted   {credentials} credentials with the newest key")
    if lost:
        raise options.Failure(f"no key decrypts the credentials {', '.join(lost)}; older keys were not dropped")


async def _rotate_credentials(config: Config) -> tuple[int, list[str]]:
    from kilonova.identity.credentials import encrypt_again
    from kilonova.identity.token_keys import CREDENTIALS_FILE_NAME, KeyFile, credential_key_ring
    from kilonova.store import check, open_database

    ring = credential_key_ring(config)
    if ring is None:
        raise options.Failure("identity.token_keys is set, but not identity.credential_keys: there are no credentials")
    path = config.data_dir / CREDENTIALS_FILE_NAME
    if isinstance(ring.source, KeyFile):
        if not path.exists():
            raise options.Failure(f"--data: {path} does not exist; the first stored credential creates it")
        ring.source.rotate(float("inf"))
    db = await open_database(config.database_url)
    try:
        await check(db)
        credentials, lost = await encrypt_again(db, ring)
    finally:
        await db.close()
    if isinstance(ring.source, KeyFile) and not lost:
        ring.source.keep(2)
    return credentials, lost


@keys.command()
def generate() -> None:
    """Print a new key for the settings identity.token_keys and identity.credential_keys."""
    from kilonova.identity.token_keys import new_key

    click.echo(new_key())


def _key_file(config: Config) -> KeyFile:
    """The file with the keys of the data directory. Raises Failure if the cloud does not use it."""
    from kilonova.identity.token_keys import FILE_NAME, KeyFile

    if config.identity.token_keys:
        raise options.Failure(
            "identity.token_keys in the configuration has the keys, so this command does not change them: put a key of "
            "`kilonova keys generate` first and restart the processes; remove older keys when their tokens have expired"
        )
    path = config.data_dir / FILE_NAME
    if not path.exists():
        raise options.Failure(
            f"--data: {path} does not exist; the first start of the cloud creates it, unless identity.token_keys has "
            "the keys (then give --config)"
        )
    return KeyFile(path)


def _fail(error: Exception) -> NoReturn:
    text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
    raise options.Failure(text) from None


def _ids(keys: Sequence[Key]) -> str:
    return ", ".join(key.id for key in keys) or "no older key"


def _age(seconds: float) -> str:
    days, rest = divmod(max(0, int(seconds)), 86400)
    return f"{days} d {rest // 3600} h" if days else f"{rest // 3600} h {rest % 3600 // 60} min"
