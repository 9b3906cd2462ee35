"""The processes that use a PostgreSQL database, known from the names of their sessions.

The server ends a session with its process, so nothing has to expire. A session with another name beginning with
"kilonova" is one of an older release.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from typing import Any, NamedTuple

from kilonova import __version__
from kilonova.store.migrations.head import HEAD

END_TIMEOUT_SECONDS = 1.0
UPGRADE_NAME = "kilonova upgrade"
_NAME = re.compile(r"kilonova (?P<release>\S+) schema (?P<schema>\d+) (?P<process>.+)")
# PostgreSQL cuts names to this length.
_MAX_NAME_BYTES = 63
_SESSIONS = """
SELECT DISTINCT application_name, COALESCE(host(client_addr), 'this machine') AS address FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'kilonova%'
    AND application_name <> $1
ORDER BY 1, 2
"""


class Session(NamedTuple):
    """A process with its release and the schema that it needs; both empty for an unknown older release."""

    release: str
    schema: str
    process: str

    def __str__(self) -> str:
        release = f"kilonova {self.release} (schema {self.schema})" if self.release else "an older release"
        return f"{release} on {self.process}"


def session_name() -> str:
    """The name of this process's sessions. The host's name comes last, because it may be cut."""
    name = f"kilonova {__version__} schema {HEAD} {os.getpid()}@{socket.gethostname()}"
    return name.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")


async def list_sessions(connection: Any, *, needing_before: str = "") -> list[Session]:
    """The processes that use the database, or those of releases with an earlier schema than `needing_before`.

    The server may take a moment to end the sessions of a process that has just stopped. `connection` is an asyncpg
    connection with the name of an upgrade.
    """
    until = time.monotonic() + END_TIMEOUT_SECONDS
    while True:
        rows = await connection.fetch(_SESSIONS, UPGRADE_NAME)
        sessions = dict.fromkeys(_parse(row["application_name"], row["address"]) for row in rows)
        found = [session for session in sessions if not needing_before or session.schema < needing_before]
        if not found or time.monotonic() >= until:
            return found
        await asyncio.sleep(0.05)


def _parse(name: str, address: str) -> Session:
    found = _NAME.fullmatch(name)
    return Session(**found.groupdict()) if found is not None else Session("", "", address)
