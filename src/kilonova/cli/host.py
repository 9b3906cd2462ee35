"""`kilonova host`: what operators do to a whole host."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kilonova.cli import bars, options
from kilonova.cli.cloud import Cloud, cloud

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from kilonova.cli.draining import Drain, Outcome, Server

_COMING_PAUSE = 0.5


@click.group()
def host() -> None:
    """Look after whole hosts."""


@host.command()
@click.argument("name", metavar="HOST")
@click.option("--to", multiple=True, metavar="HOST", help="Only to this host; several share the servers in turn.")
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be moved how and where to.")
@click.option(
    "--parallel", type=click.IntRange(1, 64), default=4, show_default=True, metavar="N", help="How many at a time."
)
@cloud
@options.together(options.data, options.file)
def drain(
    name: str, to: tuple[str, ...], dry_run: bool, parallel: int, cloud: str, file: Path | None, data: str | None
) -> None:
    """Disable HOST and move everything away from it.

    Running servers are migrated live, stopped ones migrated and confirmed, shelved ones offloaded; resizes that HOST
    has a part in are confirmed. From a host that is down, servers are evacuated. Run it again to go on after a break:
    what was begun goes on by itself. Exits with 1 if anything is left, and says why.
    """
    from kilonova.cli.draining import Drain

    drain = Drain(Cloud(options.load(file, data=data).data_dir, cloud), name, to)
    console = bars.console()
    if dry_run:
        left = _plan(console, drain)
    else:
        left = _drain(console, drain, parallel)
    if left:
        raise SystemExit(1)


def _plan(console: Console, drain: Drain) -> bool:
    """Whether something would be left."""
    servers = drain.servers()
    state = "up" if drain.is_up else "down"
    console.print(f"{drain.host} is {state} and has {_count(len(servers))}. Nothing is changed.", soft_wrap=True)
    if not servers:
        return False
    table = bars.table("SERVER", "ID", "STATUS", "HOW", "TO", "WHY NOT")
    stays = False
    for place, server in enumerate(servers):
        how, where, why = drain.plan(server, place)
        stays = stays or why is not None
        table.add_row(server.name, server.id, server.status, how, where or "", why or "")
    console.print(table)
    console.print("Each is planned as if it were the only one.")
    return stays


def _drain(console: Console, drain: Drain, parallel: int) -> bool:
    """Whether something is left."""
    from kilonova.cli.draining import Stopped

    disabled = drain.disable()
    console.print(f"{drain.host} is {'now' if disabled else 'already'} disabled, and {_state(drain)}", soft_wrap=True)
    outcomes: dict[str, Outcome] = {}
    try:
        with _Display(console, drain.host) as display:
            while True:
                servers = [server for server in drain.servers() if server.id not in outcomes]
                display.more(len(servers))
                outcomes |= {one.server.id: one for one in drain.empty(servers, display, parallel)}
                if not servers and not drain.coming():
                    break
                if not servers:
                    time.sleep(_COMING_PAUSE)
    except (KeyboardInterrupt, Stopped):
        raise options.Failure("stopped; what was begun goes on by itself, and the same command goes on here") from None
    return _report(console, drain, outcomes)


def _state(drain: Drain) -> str:
    return "up" if drain.is_up else "down: its servers are evacuated"


def _report(console: Console, drain: Drain, outcomes: dict[str, Outcome]) -> bool:
    left = drain.servers()
    away = len(outcomes.keys() - {server.id for server in left})
    if not left:
        console.print(f"{drain.host} is empty: {_count(away)} moved away.", soft_wrap=True)
        return False
    console.print(f"{drain.host}: {_count(away)} moved away, {_count(len(left))} left:", soft_wrap=True)
    table = bars.table("SERVER", "ID", "STATUS", "WHY")
    for server in left:
        outcome = outcomes.get(server.id)
        table.add_row(server.name, server.id, server.status, (outcome and outcome.why) or "came meanwhile")
    console.print(table)
    return True


def _count(number: int) -> str:
    return "1 server" if number == 1 else f"{number} servers"


class _Display:
    """A line for each server that is done; on a terminal also a bar, and what is happening right now."""

    def __init__(self, console: Console, name: str) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._whole = self._progress.add_task(name, total=0)
        self._total = 0
        self._tasks: dict[str, TaskID] = {}
        self._began: dict[str, float] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def more(self, servers: int) -> None:
        self._total += servers
        self._progress.update(self._whole, total=self._total)

    def doing(self, server: Server, words: str) -> None:
        text = f"  {server.name}: {words}"
        with self._lock:
            self._began.setdefault(server.id, time.monotonic())
            if server.id in self._tasks:
                self._progress.update(self._tasks[server.id], description=text, completed=server.progress or 0)
            else:
                self._tasks[server.id] = self._progress.add_task(text, total=100)

    def done(self, outcome: Outcome) -> None:
        with self._lock:
            if (task := self._tasks.pop(outcome.server.id, None)) is not None:
                self._progress.remove_task(task)
            self._progress.advance(self._whole)
            seconds = time.monotonic() - self._began.get(outcome.server.id, time.monotonic())
        self._progress.console.print(_line(outcome, seconds), soft_wrap=True)


def _line(outcome: Outcome, seconds: float) -> str:
    server = outcome.server
    name = f"{server.name} ({server.id})"
    if outcome.why is not None:
        return f"✗ {name}: {outcome.why}"
    where = f" on {outcome.where}" if outcome.where else " gone from every host"
    how = f" after {', '.join(outcome.done)}" if outcome.done else ""
    return f"✓ {name}: {where.strip()}{how}, {seconds:.1f} s"
