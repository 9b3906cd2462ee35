"""Structured logs: one JSON object per line, with the ids of its request and operation."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

import orjson

from kilonova import clock
from kilonova.telemetry import context

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
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
            line["exception"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:  # invalid Unicode, or an integer above 64 bits
            return json.dumps(line, default=str)


def configure(level: str, file: str) -> None:
    """`file` is a path, or `-` for standard error. The file is private, because it may contain names of servers."""
    if file == "-":
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
    else:
        os.close(os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        handler = logging.FileHandler(file)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "uvicorn.access", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
