"""Running a process in the foreground: its directory, its signals, its lines on the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import socket
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from kilonova import datadir
from kilonova.cli.options import Failure, InUse, one_line_each

if TYPE_CHECKING:
    from kilonova.config import Config
    from kilonova.process import Process, Roles

log = logging.getLogger(__name__)
STOP_SECONDS = 4.5
# How finely that is counted: of a time in which the whole process stood still, as on a machine that is suspended, only
# so much counts.
_TICK = 0.25


def serve(config: Config, roles: Roles) -> None:
    """Runs until SIGTERM or SIGINT. Whatever keeps it from starting becomes one line."""
    import uvloop

    from kilonova.http.server import CannotListen, bind
    from kilonova.process import CannotStart, check

    directory = config.data_dir
    try:
        check(config, roles)
        if config.driver == "libvirt" and roles.whole:
            print_notes(config, first=True)
        os.umask(0o077)  # whatever is written is for the owner alone
        with ExitStack() as stack:
            datadir.prepare(directory)
            # Processes of a cloud that is spread over several share the directory; a whole one is alone in it.
            stack.enter_context(datadir.locked(directory, shared=not roles.whole))
            bound = stack.enter_context(bind(config.host, config.port)) if roles.api else None
            start_log(config)
            runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
            runner.run(_run(config, roles, bound))
    except datadir.InUse as error:
        raise InUse(str(error)) from None
    except (CannotListen, CannotStart) as error:
        raise Failure(one_line_each(str(error))) from None
    except OSError as error:
        raise Failure(f"{error.filename or directory}: {error.strerror}") from None


def print_notes(config: Config, *, first: bool = False) -> None:
    """What real guests could have on this machine, and have not. `first`: also of the image that they boot first."""
    from kilonova.hosts.drivers.libvirt import preflight

    for line in preflight.notes(config) + (preflight.first_image(config) if first else []):
        click.echo(f"note        {line}", err=True)


def start_log(config: Config) -> None:
    from kilonova.telemetry import logs

    try:
        logs.configure(config.log.level, config.log.file or str(config.data_dir / "kilonova.log"))
    except ValueError:
        raise Failure(f"log.level: {config.log.level!r} is none of debug, info, warning, error, critical") from None


async def _run(config: Config, roles: Roles, bound: socket.socket | None) -> None:
    from kilonova.process import running

    stop = stop_event()
    async with running(config, roles, bound) as process:
        for line in _lines(process):
            click.echo(line)
        await process.run_until(stop)


def stop_event() -> asyncio.Event:
    """Set by the first signal; a second one ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        stop.set()
        threading.Thread(target=_end_late, daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    return stop


def _end_late() -> None:
    """Whatever holds up the stop loses: all that was promised is in the database. The log says where it stood."""
    for _ in range(round(STOP_SECONDS / _TICK)):
        time.sleep(_TICK)
    log.critical("did not stop within %s s", STOP_SECONDS)
    with contextlib.suppress(OSError, ValueError):
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler):
                faulthandler.dump_traceback(handler.stream)
    os._exit(1)


def _lines(process: Process) -> list[str]:
    if process.clouds is None:
        return [f"worker      working (process {os.getpid()}, {process.host_count} hosts)"]
    shown = {name: url for name, url in process.endpoints.items() if name != "auth_url"}
    shown["clouds"] = str(process.clouds)
    width = max(11, *map(len, shown))
    return [f"{name:<{width}} {value}" for name, value in shown.items()]
