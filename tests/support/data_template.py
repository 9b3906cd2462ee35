"""A prepared data directory with the result of a first start: the schema, users, flavors, an image, a network.

A first start takes twice as long as a later one, mostly for hashing passwords, which is slow on purpose. The
template uses a fast hash. It makes logins fast too, because a hash contains its parameters. Hosts, zones and other
objects that depend on options are created at the start of the process as usual.
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
from kilonova.identity import passwords
from kilonova.identity import seed as identity
from kilonova.seeds import seed
from kilonova.services import Services
from kilonova.store import migrate
from kilonova.store.url import dialect_of, sqlite_path

DATABASE_FILE = "kilonova.db"


def prepare_data_directory(data: Path, url: str | None) -> None:
    """Fill a new data directory and the database at `url`, by default a file in the directory.

    An existing directory or database is not changed.
    """
    if data.exists():
        return
    if url is None:
        shutil.copytree(_template_directory(), data)
    elif dialect_of(url) != "sqlite":
        _run(_create_data(data, url))
    elif not sqlite_path(url).exists():
        shutil.copytree(_template_directory(), data)
        (data / DATABASE_FILE).rename(sqlite_path(url))


@cache
def _template_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="kilonova-template-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    data = directory / "data"
    _run(_create_data(data, f"sqlite://{data / DATABASE_FILE}"))
    return data


async def _create_data(data: Path, url: str) -> None:
    if await migrate.revision(url) is not None:
        return
    services = Services()
    services.config = config.load(environ={}, flags={"data": str(data), "database": url})
    datadir.prepare(data)
    await store.upgrade(url)
    db = services.db = await store.open_database(url)
    log_n, passwords.LOG_N = passwords.LOG_N, 1
    try:
        await identity.seed(db, datadir.load_passwords(data, identity.user_names()))
        await seed(services)
    finally:
        passwords.LOG_N = log_n
        await db.close()
    for path in (data, *data.rglob("*")):  # as the process itself creates files
        path.chmod(0o700 if path.is_dir() else 0o600)


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run in a separate thread, because the caller may be in an event loop."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
