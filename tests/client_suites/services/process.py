"""Processes of services. They end with the test process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.support.parent_death import die_with_parent

START_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 5.0


class ServiceProcess:
    """A context manager that starts the command, and ends it with all its children. `log` gets the output."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        environ: Mapping[str, str],
        *,
        port: int | None = None,
        ready: str = "",
    ) -> None:
        """The process starts in its HOME. It is ready when it listens on the port, and its log has the text `ready`."""
        self.command = command
        self.log = log
        self.environ = environ
        self.port = port
        self.ready = ready
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ServiceProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.environ["HOME"],
                env=dict(self.environ),
                preexec_fn=die_with_parent,
                process_group=0,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> None:
        assert self.process is not None
        until = time.monotonic() + START_TIMEOUT_SECONDS
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{self.command[0]} did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        if self.ready not in self.log.read_text():
            return False
        if self.port is None:
            return True
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_SECONDS)
        # Children that the process did not end.
        self.kill()

    def kill(self) -> None:
        """End the process and its children without cleanup."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None
