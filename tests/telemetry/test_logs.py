"""Logs: repeated tracebacks, and a full disk."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from kilonova.telemetry import logs
from kilonova.telemetry.logs import JsonFormatter, LogFile


def logger_of(handler: logging.Handler) -> logging.Logger:
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("tested")
    logger.addHandler(handler)
    return logger


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def fail(logger: logging.Logger, kind: type[Exception]) -> None:
    try:
        raise kind("no")
    except kind:
        logger.exception("failed")


def test_repeated_traceback_is_written_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logger_of(LogFile(str(tmp_path / "log")))
    for kind in (ValueError, ValueError, KeyError, ValueError):
        fail(logger, kind)
    monkeypatch.setattr(logs, "TRACEBACK_INTERVAL_SECONDS", 0.0)
    fail(logger, ValueError)
    written = [line["exception"] for line in lines(tmp_path / "log")]
    assert ["Traceback" in text for text in written] == [True, False, True, False, True]
    assert written[1].startswith("ValueError: no (the traceback is at 20")


def test_lines_that_cannot_be_written_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = LogFile("/dev/full")
    logger = logger_of(handler)
    for _ in range(3):
        logger.info("lost")
    with (tmp_path / "log").open("a") as file:
        os.dup2(file.fileno(), handler._fd)
    logger.info("again")
    assert [line["message"] for line in lines(tmp_path / "log")] == [
        "3 lines of the log were dropped, because they could not be written",
        "again",
    ]
    assert capsys.readouterr() == ("", "")


def test_line_after_a_partial_one_begins_a_new_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger, write = logger_of(LogFile(str(tmp_path / "log"))), os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    logger.info("lost")
    monkeypatch.undo()
    logger.info("again")
    partial, dropped, again = (tmp_path / "log").read_text().splitlines()
    assert len(partial) == 7
    assert json.loads(dropped)["message"].startswith("1 lines")
    assert json.loads(again)["message"] == "again"
