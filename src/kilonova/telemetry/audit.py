"""The audit log: one JSON object per line, each for a request or the end of an operation."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import orjson

from kilonova import clock

log = logging.getLogger(__name__)


class AuditLog:
    """Appends lines to a file, which may be moved away, or to standard error (`-`). Without a file it does nothing.

    A line is written before its response is sent. So a killed process loses no line of an answered request. If lines
    cannot be written, requests go on. The next line that can be written says how many were lost.
    """

    def __init__(self, file: str = "", *, reads: bool = False) -> None:
        self.enabled = bool(file)
        self.reads = reads
        self._path = "" if file == "-" else file
        self._descriptor = sys.stderr.fileno() if file == "-" else -1
        self._identity: tuple[int, int] | None = None
        self._lost = 0
        self._reason = ""
        self._line_is_open = False

    def write(self, event: dict[str, Any]) -> None:
        try:
            self.reopen()
            if self._lost:
                self._append(self._loss())
                self._lost = 0
            self._append({"eventTime": clock.iso_micro(clock.now()) + "Z", **event})
        except OSError as error:
            if not self._lost:
                log.error("the audit log cannot be written: %s", error)
            self._lost += 1
            self._reason = error.strerror or str(error)

    def reopen(self) -> None:
        """Open the file, again if another program has moved it away. Raises OSError."""
        if not self._path:
            return
        try:
            found = os.stat(self._path)
            if (found.st_dev, found.st_ino) == self._identity:
                return
        except FileNotFoundError:
            pass
        descriptor = os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self.close()
        opened = os.fstat(descriptor)
        self._descriptor, self._identity = descriptor, (opened.st_dev, opened.st_ino)

    def close(self) -> None:
        if self._identity is not None:
            os.close(self._descriptor)
            self._identity = None

    def _append(self, event: dict[str, Any]) -> None:
        line = orjson.dumps(event) + b"\n"
        if self._line_is_open:
            line = b"\n" + line
        written = os.write(self._descriptor, line)
        if written < len(line):
            self._line_is_open = True
            written += os.write(self._descriptor, line[written:])
        self._line_is_open = written < len(line)
        if self._line_is_open:
            raise OSError("a line was written in part only")

    def _loss(self) -> dict[str, Any]:
        return {
            "eventTime": clock.iso_micro(clock.now()) + "Z",
            "action": "lose",
            "outcome": "failure",
            "target": {"type": "audit/lines", "count": self._lost},
            "reason": {"text": self._reason},
        }
