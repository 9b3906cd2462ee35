"""`kilonova host`: operations on whole hosts."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kilonova.cli import options, tables
from kilonova.cli.cloud import Cloud, cloud

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from kilonova.cli.drain import Drain, Outcome, Server

_ARRIVING_PAUSE_SECONDS = 0.5


@click.group()
def host() -> None:
    """Operate on whole hosts."""


@host.command()
@click.argument("name", metavar="HOST")
@click.option("--to", multiple=True, metavar="HOST", help="Only to this host; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Change nothing; show how and where each server would be moved.")
@click.option(
    "--parallel", type=click.IntRange(1, 64), default=4, show_default=True, metavar="N", help="How many at a time."
)
@cloud
@options.combine(options.data, options.file)
def drain(
    name: str, to: tuple[str, ...], dry_run: bool, parallel: int, cloud: str, file: Path | None, data: str | None
) -> None:
    """Disable HOST and move all servers away from it.

    Running servers are migrated live, stopped servers are migrated and confirmed, shelved servers are offloaded.
    Resizes from and to HOST are confirmed. Servers of a host that is down are evacuated. After an interruption, run the
    command again; started operations continue by themselves. Exits with 1 if a server is left, and shows why.
    """
    from kilonova.cli.drain import Drain

    drain = Drain(Cloud(options.load(file, data=data), cloud), name, to)
    console = tables.make_console()
    if dry_run:
        left = _plan(console, drain)
    else:
        left = _drain(console, drain, parallel)
    if left:
        raise SystemExit(1)


def _plan(console: Console, drain: Drain) -> bool:
    """Show what would be moved; whether a server would stay."""
    servers = drain.servers()
    state = "up" if drain.is_up else "down"
    console.print(f"{drain.host} is {state} and has {_servers(len(servers))}. Nothing is changed.", soft_wrap=True)
    if not servers:
        return False
    table = tables.make_table("SERVER", "ID", "STATUS", "HOW", "TO", "WHY NOT")
    stays = False
    for index, server in enumerate(servers):
        how, where, why = drain.plan(server, index)
        stays = stays or why is not None
        table.add_row(server.name, server.id, server.status, how, where or "", why or "")
    console.print(table)
    console.print("Each server is planned as if it were the only one.")
    return stays


def _drain(console: Console, drain: Drain, parallel: int) -> bool:
    """Whether a server is left."""
    from kilonova.cli.drain import Stopped

    disabled = drain.disable()
    console.print(f"{drain.host} is {'now' if disabled else 'already'} disabled, and {_state(drain)}", soft_wrap=True)
    outcomes: dict[str, Outcome] = {}
    try:
        with _Display(console, drain.host) as display:
            while True:
                servers = [server for server in drain.servers() if server.id not in outcomes]
                display.add_servers(len(servers))
                outcomes |= {one.server.id: one for one in drain.move_all(servers, display, parallel)}
                if not servers and not drain.arriving():
                    break
                if not servers:
                    time.sleep(_ARRIVING_PAUSE_SECONDS)
    except (KeyboardInterrupt, Stopped):
        raise options.Failure("interrupted; started operations continue, run the command again for the rest") from None
    return _report(console, drain, outcomes)


def _state(drain: Drain) -> str:
    return "up" if drain.is_up else "down: its servers are evacuated"


def _report(console: Console, drain: Drain, outcomes: dict[str, Outcome]) -> bool:
    left = drain.servers()
    moved = len(outcomes.keys() - {server.id for server in left})
    if not left:
        console.print(f"{drain.host} is empty: {_servers(moved)} moved away.", soft_wrap=True)
        return False
    console.print(f"{drain.host}: {_servers(moved)} moved away, {_servers(len(left))} left:", soft_wrap=True)
    table = tables.make_table("SERVER", "ID", "STATUS", "WHY")
    for server in left:
        outcome = outcomes.get(server.id)
        table.add_row(server.name, server.id, server.status, (outcome and outcome.failure) or "arrived meanwhile")
    console.print(table)
    return True


def _servers(number: int) -> str:
    return "1 server" if number == 1 else f"{number} servers"


class _Display:
    """Prints a line for each finished server; on a terminal also a progress bar and the running actions."""

    def __init__(self, console: Console, name: str) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
            console=console,
            disable=not console.is_terminal,
        )
        self._overall = self._progress.add_task(name, total=0)
        self._total = 0
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def add_servers(self, servers: int) -> None:
        self._total += servers
        self._progress.update(self._overall, total=self._total)

    def progress(self, server: Server, text: str) -> None:
        line = f"  {server.name}: {text}"
        with self._lock:
            self._started.setdefault(server.id, time.monotonic())
            if server.id in self._tasks:
                self._progress.update(self._tasks[server.id], description=line, completed=server.progress or 0)
            else:
                self._tasks[server.id] = self._progress.add_task(line, total=100)

    def finished(self, outcome: Outcome) -> None:
        with self._lock:
            if (task := self._tasks.pop(outcome.server.id, None)) is not None:
                self._progress.remove_task(task)
            self._progress.advance(self._overall)
            seconds = time.monotonic() - self._started.get(outcome.server.id, time.monotonic())
        self._progress.console.print(_result_line(outcome, seconds), soft_wrap=True)


def _result_line(outcome: Outcome, seconds: float) -> str:
    server = outcome.server
    name = f"{server.name} ({server.id})"
    if outcome.failure is not None:
        return f"✗ {name}: {outcome.failure}"
    where = f" on {outcome.host}" if outcome.host else " on no host"
    how = f" after {', '.join(outcome.done)}" if outcome.done else ""
    return f"✓ {name}: {where.strip()}{how}, {seconds:.1f} s"
