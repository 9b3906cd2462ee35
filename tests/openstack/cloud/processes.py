"""Processes that outlive the Python process that started them.

A process is recorded by its id and its start time, so an id that the system assigned again is never signalled.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ANSWER_TIMEOUT_SECONDS = 180.0
STOP_TIMEOUT_SECONDS = 20.0
POLL_SECONDS = 0.05


class CloudError(Exception):
    """A service of the cloud could not be started or stopped."""


def start_time(pid: int) -> str | None:
    """The start time of a process; None if it does not exist or only waits for its parent to reap it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        # While threads of a killed process still exist, its sockets do, too.
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" and threads <= 1 else fields[19]


def descendants(pid: int) -> list[int]:
    """The process and all its descendants. Those of PostgreSQL and Erlang have process groups of their own."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(") ")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def is_open(port: int) -> bool:
    """Whether something accepts connections at the port."""
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(what: str, condition: Callable[[], bool], seconds: float = ANSWER_TIMEOUT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise CloudError(f"timeout of {seconds:.0f} s: {what}")
        time.sleep(POLL_SECONDS)


@dataclass
class Processes:
    """The processes whose records are in the directory `run` and whose output is in `log`."""

    run: Path
    log: Path
    _children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def pid(self, name: str) -> int | None:
        """The id of the recorded process, None if it does not run."""
        if child := self._children.get(name):
            child.poll()  # reaps it
        try:
            pid, started = self._record(name).read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if start_time(int(pid)) == started else None

    def is_running(self, name: str) -> bool:
        return self.pid(name) is not None

    def names(self) -> list[str]:
        """The processes that were started and not stopped."""
        return sorted(path.stem for path in self.run.glob("*.pid"))

    def spawn(
        self, name: str, command: Sequence[str | Path], environ: Mapping[str, str], ports: Sequence[int] = ()
    ) -> None:
        """Start a process in a session of its own, unless it runs."""
        if self.is_running(name):
            return
        for port in ports:
            _require_free(name, port)
        with (self.log / f"{name}.out").open("ab") as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environ),
                start_new_session=True,
            )
        self._children[name] = child
        self._record(name).write_text(f"{child.pid} {start_time(child.pid)}\n")

    def wait_for(self, name: str, answers: Callable[[], bool]) -> None:
        """Wait until the process answers."""

        def answered() -> bool:
            if not self.is_running(name):
                raise CloudError(f"{name} has ended, its output is in {self.log / name}.out")
            return answers()

        wait_until(f"{name} does not answer, its output is in {self.log / name}.out", answered)

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop a process, and kill it if that takes too long."""
        if pid := self.pid(name):
            processes = descendants(pid)
            os.kill(pid, number)
            try:
                wait_until(name, lambda: not self.is_running(name), STOP_TIMEOUT_SECONDS)
            except CloudError:
                _kill(pid, processes)
                wait_until(name, lambda: not self.is_running(name), STOP_TIMEOUT_SECONDS)
        self._record(name).unlink(missing_ok=True)

    def kill(self, name: str) -> None:
        """Kill a process, its group and its other descendants, and wait until they do not exist any more."""
        if pid := self.pid(name):
            processes = descendants(pid)
            _kill(pid, processes)
            wait_until(f"{name} does not end", lambda: not self.is_running(name), STOP_TIMEOUT_SECONDS)
            others = [process for process in processes if process != pid]
            wait_until(f"{name} has processes left", lambda: not any(map(start_time, others)), STOP_TIMEOUT_SECONDS)

    def _record(self, name: str) -> Path:
        return self.run / f"{name}.pid"


def _kill(pid: int, processes: Sequence[int]) -> None:
    os.killpg(pid, signal.SIGKILL)
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _require_free(name: str, port: int) -> None:
    with socket.socket() as probe:
        # A server may bind a port whose former connections wait for their end.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CloudError(
                f"port {port} of {name} is used by another process ({error.strerror}); "
                "set OPENSTACK_CLOUD_PORT_BASE to start a cloud on other ports"
            ) from None
