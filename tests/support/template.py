"""What a first start makes, made ahead: the schema, users, flavors, an image, a network.

A first start takes twice as long as a later one, most of it for passwords that are slow to hash on purpose. Here they
are hashed quickly, so that every login is cheap as well: the parameters stand in the hash. Hosts, zones and whatever
else depends on options comes with the process's start, as ever.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
import threading
from collections.abc import Coroutine
from functools import cache
from pathlib import Path
from typing import Any

from kilonova import config, datadir, store
from kilonova.identity import bootstrap as identity
from kilonova.identity import passwords
from kilonova.seeds import seed
from kilonova.services import Services
from kilonova.store import migrate
from kilonova.store.url import dialect_of, sqlite_path

DATABASE = "kilonova.db"


def lay_out(data: Path, url: str | None) -> None:
    """Fill a new data directory and the database at `url`, by default a file in the directory.

    What is not new stays as it is, so that the process meets it.
    """
    if data.exists():
        return
    if url is None:
        shutil.copytree(_template(), data)
    elif dialect_of(url) != "sqlite":
        _run(_make(data, url))
    elif not sqlite_path(url).exists():
        shutil.copytree(_template(), data)
        (data / DATABASE).rename(sqlite_path(url))


@cache
def _template() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="kilonova-template-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    data = directory / "data"
    _run(_make(data, f"sqlite://{data / DATABASE}"))
    return data


async def _make(data: Path, url: str) -> None:
    if await migrate.revision(url) is not None:
        return
    services = Services()
    services.config = config.load(environ={}, flags={"data": str(data), "database": url})
    datadir.prepare(data)
    await store.upgrade(url)
    db = services.db = await store.open_database(url)
    slow, passwords.LOG_N = passwords.LOG_N, 1
    try:
        await identity.bootstrap(db, datadir.passwords(data, identity.users()))
        await seed(services)
    finally:
        passwords.LOG_N = slow
        await db.close()
    for path in (data, *data.rglob("*")):  # whatever a process writes is for its owner alone
        path.chmod(0o700 if path.is_dir() else 0o600)


def _run(work: Coroutine[Any, Any, None]) -> None:
    """In a thread of its own, as the caller may be in a loop."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
