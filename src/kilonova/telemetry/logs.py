"""Structured logs: one JSON object a line, with the ids of the request and of the operation it belongs to."""

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
        from kilonova.operations.context import operation_id

        line: dict[str, Any] = {
            "time": clock.iso_micro(record.created) + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request := context.request_id.get()) is not None:
            line["request_id"] = request
        if (chain := context.global_request_id.get()) is not None:
            line["global_request_id"] = chain
        if (operation := operation_id.get()) is not None:
            line["operation_id"] = operation
        line.update((key, value) for key, value in vars(record).items() if key not in _STANDARD)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:  # text that is no Unicode, or a number without end
            return json.dumps(line, default=str)


def configure(level: str, file: str) -> None:
    """`file` is a path, or `-` for standard error. The file may hold names of people's servers, so it is private."""
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
