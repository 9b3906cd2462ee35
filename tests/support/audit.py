"""The audit log in tests, and requests as if they came from a client over the network."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from kilonova.services import Services
from kilonova.telemetry.audit import AuditLog

CLIENT_ADDRESS = "192.0.2.7"


def from_client(app: Any) -> Any:
    """The application, where requests have a client. Requests between services of a process have none."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "client": (CLIENT_ADDRESS, 40000)}, receive, send)

    return call


class Events(list[dict[str, Any]]):
    """The events written since the last `clear`, read from the file of the audit log."""


class _RecordedLog(AuditLog):
    """An audit log that also keeps what it has written to its file."""

    def __init__(self, path: Path, *, reads: bool = False) -> None:
        super().__init__(str(path), reads=reads)
        self.file = path
        self.events: list[dict[str, Any]] = []
        self._seen = 0

    def write(self, event: dict[str, Any]) -> None:
        super().write(event)
        content = self.file.read_bytes()
        self.events += map(orjson.loads, content[self._seen :].splitlines())
        self._seen = len(content)


@contextmanager
def recorded_events(services: Services, *, reads: bool = False) -> Iterator[list[dict[str, Any]]]:
    """Turn on the audit log. The list has the events that are in its file."""
    former = services.audit
    with tempfile.TemporaryDirectory() as directory:
        audit = services.audit = _RecordedLog(Path(directory) / "audit.log", reads=reads)
        try:
            yield audit.events
        finally:
            audit.close()
            services.audit = former
