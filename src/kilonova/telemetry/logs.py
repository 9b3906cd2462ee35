"""Structured logs: one JSON object per line, with the ids of its request and operation."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from typing import Any

import orjson

from kilonova import clock
from kilonova.telemetry import context

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


# A traceback is written once in this time; repetitions refer to it, so a failure of all requests does not fill the log.
TRACEBACK_INTERVAL_SECONDS = 60.0
_MAX_TRACEBACKS = 100


class JsonFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__()
        # By traceback: when it was written last.
        self._tracebacks: dict[str, float] = {}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": clock.iso_micro(record.created) + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request := context.request_id.get()) is not None:
            line["request_id"] = request
        if (global_request := context.global_request_id.get()) is not None:
            line["global_request_id"] = global_request
        if (operation := context.operation_id.get()) is not None:
            line["operation_id"] = operation
        line.update((key, value) for key, value in vars(record).items() if key not in _STANDARD)
        if record.exc_info:
            line["exception"] = self._limit(self.formatException(record.exc_info), record.created)
        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:  # invalid Unicode, or an integer above 64 bits
            return json.dumps(line, default=str)

    def _limit(self, traceback: str, at: float) -> str:
        """The traceback, or its last line if it was written a short time ago."""
        written_at = self._tracebacks.get(traceback)
        if written_at is not None and 0 <= at - written_at < TRACEBACK_INTERVAL_SECONDS:
            return f"{traceback.rpartition(chr(10))[2]} (the traceback is at {clock.iso_micro(written_at)}Z)"
        self._tracebacks.pop(traceback, None)
        if len(self._tracebacks) >= _MAX_TRACEBACKS:
            del self._tracebacks[next(iter(self._tracebacks))]
        self._tracebacks[traceback] = at
        return traceback


class LogFile(logging.Handler):
    """Appends lines to a file. Lines that cannot be written, because the disk is full, are counted and dropped."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self._dropped = 0
        self._has_partial_line = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped:
                self._write(self._report_dropped())
                self._dropped = 0
            self._write(self.format(record))
        except OSError:
            self._dropped += 1
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        super().close()

    def _report_dropped(self) -> str:
        message = f"{self._dropped} lines of the log were dropped, because they could not be written"
        return self.format(
            logging.makeLogRecord(
                {"name": __name__, "levelno": logging.WARNING, "msg": message, "levelname": "WARNING"}
            )
        )

    def _write(self, line: str) -> None:
        data = f"{chr(10) if self._has_partial_line else ''}{line}\n".encode(errors="backslashreplace")
        written = os.write(self._fd, data)
        self._has_partial_line = written < len(data) and (written > 0 or self._has_partial_line)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def configure(level: str, file: str) -> None:
    """`file` is a path, or `-` for standard error. The file is private, because it may contain names of servers."""
    if file == "-":
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
    else:
        handler = LogFile(file)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
