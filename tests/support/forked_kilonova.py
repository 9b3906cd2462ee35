"""Starts `kilonova` by forking a process that has loaded its modules, because loading takes most of a start.

    process = ForkedKilonova(["up", "--data", …], environ, stdin, stdout, stderr)    # as subprocess.Popen
    process.kill(); process.wait()

The program runs with its own arguments, environment and files in a separate process that can be killed. Only a new
interpreter detects a module that a command forgets to import, so some tests of each command start one.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

LENGTH_DIGITS = len("00000000")
# Modules that commands import when they need them.
LAZY_MODULES = (
    "aiohttp",
    "asyncpg",
    "jsonschema",
    "numpy",
    "oslo_policy.policy",
    "rich.live",
    "rich.progress",
    "uvloop",
    "yaml",
)
EXCLUDED_MODULES = (
    "kilonova.__main__",
    "kilonova.client",
    "kilonova.hosts.drivers.libvirt",
    "kilonova.store.migrations",
)


class ForkedKilonova:
    """The part of subprocess.Popen's interface that tests use."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], *files: int) -> None:
        """`files` become the process's standard input, output and error output."""
        self.args = ["kilonova", *arguments]
        self.returncode: int | None = None
        self._exit_pipe, exit_pipe_end = os.pipe()
        try:
            self.pid = _server().fork(json.dumps([arguments, dict(environ), os.getcwd()]), [*files, exit_pipe_end])
        finally:
            os.close(exit_pipe_end)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._exit_pipe], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._lock:
            if self.returncode is None:
                self.returncode = int(os.read(self._exit_pipe, 16) or -signal.SIGKILL)
                os.close(self._exit_pipe)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control, other = socket.socketpair()
        command = [sys.executable, "-m", __name__, str(other.fileno())]
        # Libraries of numpy start threads, and a process with threads cannot be forked safely.
        environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(command, pass_fds=[other.fileno()], env=environ, cwd=root)
        other.close()
        atexit.register(self._end)

    def fork(self, message: str, files: list[int]) -> int:
        content = message.encode()
        with self._lock:
            socket.send_fds(self._control, [b"%08x" % len(content)], files)
            self._control.sendall(content)
            pid = self._control.recv(LENGTH_DIGITS, socket.MSG_WAITALL)
        assert pid, "the process that forks kilonova has ended"
        return int(pid, 16)

    def _end(self) -> None:
        """End the server, which kills all processes that still run."""
        self._control.close()
        self._process.wait()


_server = cache(_Server)


# In the forking process


def serve(control: socket.socket) -> None:
    """Fork `kilonova` on request. Returns when the control socket is closed."""
    _load_modules()
    wakeup_read, wakeup_write = os.pipe()
    waiting: list[socket.socket | int] = [control, wakeup_read]
    os.set_blocking(wakeup_write, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_write)
    exit_pipes: dict[int, int] = {}
    while True:
        ready, _, _ = select.select(waiting, [], [])
        if wakeup_read in ready:
            os.read(wakeup_read, 4096)
            _reap(exit_pipes)
        if control not in ready:
            continue
        length, files, _, _ = socket.recv_fds(control, LENGTH_DIGITS, 4)
        if not length:
            break
        message = control.recv(int(length, 16), socket.MSG_WAITALL)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for file in (wakeup_read, wakeup_write, control.detach(), *exit_pipes.values(), files.pop()):
                os.close(file)
            _run_kilonova(files, *json.loads(message))
        exit_pipes[pid] = files.pop()
        for file in files:
            os.close(file)
        control.sendall(b"%08x" % pid)
    for pid in exit_pipes:
        os.kill(pid, signal.SIGKILL)


def _load_modules() -> None:
    import kilonova

    for name in LAZY_MODULES:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(kilonova.__path__, "kilonova."):
        if not module.name.startswith(EXCLUDED_MODULES):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


def _reap(exit_pipes: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = found
            end = exit_pipes.pop(pid)
            with suppress(BrokenPipeError):
                os.write(end, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(end)


def _run_kilonova(files: list[int], arguments: list[str], environ: dict[str, str], folder: str) -> NoReturn:
    code: object = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
        os.environ.clear()
        os.environ.update(environ)
        os.chdir(folder)
        sys.argv = ["kilonova", *arguments]
        code = _main()
    except BaseException:
        traceback.print_exc()
    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def _main() -> object:
    from kilonova.cli import main

    try:
        main(prog_name="kilonova")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if end.code is not None else 0
    return 0


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as control:
        serve(control)
