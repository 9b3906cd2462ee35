"""Runs a process in the foreground: data directory, signals, terminal output."""

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
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import click

from kilonova import datadir
from kilonova.cli.options import Failure, InUse, one_reason_per_line

if TYPE_CHECKING:
    from kilonova.config import Config
    from kilonova.process import Process
    from kilonova.startup_checks import Roles

log = logging.getLogger(__name__)
STOP_TIMEOUT_SECONDS = 4.5
# Granularity of that timeout. A pause of the whole process, such as a suspended machine, counts as one tick.
_TICK_SECONDS = 0.25
# After this time the terminal says what the start waits for.
_SLOW_SECONDS = 2.0


def serve(config: Config, roles: Roles) -> None:
    """Run until SIGTERM or SIGINT. Raises Failure if the process cannot start."""
    import uvloop

    from kilonova.http.server import CannotListen, listen
    from kilonova.startup_checks import CannotStart, check

    directory = config.data_dir
    try:
        check(config, roles)
        if config.driver == "libvirt" and roles.whole:
            check_libvirt(config)
            print_notes(config, first=True)
        dies_with_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL and _has_terminal()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a start reads all files anyway
        os.umask(0o077)  # files are readable by the owner only
        with ExitStack() as stack:
            datadir.prepare(directory)
            # `kilonova up` locks the directory exclusively; separate processes of one cloud share it.
            stack.enter_context(datadir.lock(directory, shared=not roles.whole))
            bound = stack.enter_context(listen(config.host, config.port)) if roles.api else None
            start_log(config)
            runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
            runner.run(_run(config, roles, bound, dies_with_terminal=dies_with_terminal))
    except datadir.DirectoryInUse as error:
        raise InUse(str(error)) from None
    except (CannotListen, CannotStart) as error:
        raise Failure(one_reason_per_line(str(error))) from None
    except OSError as error:
        raise Failure(f"{error.filename or directory}: {error.strerror}") from None


def check_libvirt(config: Config) -> None:
    """Check that this machine can run real guests. Say so if that takes long."""
    from kilonova.startup_checks import check_machine

    line = f"libvirt at {config.libvirt.uri} is slow to respond; waiting for it"
    slow = threading.Timer(_SLOW_SECONDS, print_note, (line,))
    slow.daemon = True
    slow.start()
    try:
        check_machine(config)
    finally:
        slow.cancel()


def print_note(line: str) -> None:
    click.echo(f"note        {line}", err=True)


def print_notes(config: Config, *, first: bool = False) -> None:
    """Print which features real guests lack on this machine. `first`: include notes on the first image."""
    from kilonova.hosts.drivers.libvirt import preflight

    for line in preflight.notes(config) + (preflight.first_image(config) if first else []):
        print_note(line)


def start_log(config: Config) -> None:
    from kilonova.telemetry import logs

    try:
        logs.configure(config.log.level, config.log.file or str(config.data_dir / "kilonova.log"))
    except ValueError:
        raise Failure(f"log.level: {config.log.level!r} is not one of debug, info, warning, error, critical") from None


async def _run(config: Config, roles: Roles, bound: socket.socket | None, *, dies_with_terminal: bool) -> None:
    from kilonova.process import running

    def hang_up() -> None:
        """Reload, unless the signal says that the terminal was closed."""
        if dies_with_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            process.reloads.run()

    stop = stop_event()
    async with running(config, roles, bound, print_line=print_host) as process:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up)
        for line in _start_lines(process):
            click.echo(line)
        await process.background.run_until(stop)


def print_host(line: str) -> None:
    """Print a line while the cloud runs. Its terminal may be closed by then."""
    with suppress(OSError):
        click.echo(f"host        {line}", err=True)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def stop_event() -> asyncio.Event:
    """An event that the first signal sets. A second signal kills the process."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        stop.set()
        threading.Thread(target=_kill_if_stuck, daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop


def _kill_if_stuck() -> None:
    """Exit if the stop takes too long, with a traceback in the log. All accepted work is in the database."""
    for _ in range(round(STOP_TIMEOUT_SECONDS / _TICK_SECONDS)):
        time.sleep(_TICK_SECONDS)
    log.critical("did not stop within %s s", STOP_TIMEOUT_SECONDS)
    with contextlib.suppress(OSError, ValueError):
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler):
                faulthandler.dump_traceback(handler.stream)
    os._exit(1)


def _start_lines(process: Process) -> list[str]:
    if process.servers is None:
        return [f"worker      working (process {os.getpid()}, {process.host_count} hosts)"]
    shown = {name: url for name, url in process.servers.endpoints.items() if name != "auth_url"}
    shown["clouds"] = str(process.servers.clouds)
    width = max(11, *map(len, shown))
    return [f"{name:<{width}} {value}" for name, value in shown.items()]
