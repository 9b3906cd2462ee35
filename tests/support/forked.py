"""`kilonova` loaded once and forked for every start: loading its modules takes longer than all else that a start does.

    process = Forked(["up", "--data", …], environ, stdin, stdout, stderr)    # as subprocess.Popen
    process.kill(); process.wait()

The program is the same, with its arguments, environment and files, in a process of its own that can be killed. Whatever
the process does with what it has not loaded yet, such as a module that a command forgets to import, only a new
interpreter shows: some tests of each command start one.
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

PREFIX = len("00000000")
# Modules that commands load when they need them. Those of real guests and of the stock client are for others.
LATE = ("asyncpg", "httpx", "jsonschema", "numpy", "oslo_policy.policy", "rich.live", "rich.progress", "uvloop", "yaml")
NOT_LOADED = ("kilonova.__main__", "kilonova.client", "kilonova.hosts.drivers.libvirt", "kilonova.store.migrations")


class Forked:
    """Like subprocess.Popen, as far as tests use it."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], *files: int) -> None:
        """`files` become the process's standard input, output and error output."""
        self.args = ["kilonova", *arguments]
        self.returncode: int | None = None
        self._ended, end = os.pipe()
        try:
            self.pid = _server().fork(json.dumps([arguments, dict(environ), os.getcwd()]), [*files, end])
        finally:
            os.close(end)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._ended], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._lock:
            if self.returncode is None:
                self.returncode = int(os.read(self._ended, 16) or -signal.SIGKILL)
                os.close(self._ended)
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

    def fork(self, told: str, files: list[int]) -> int:
        content = told.encode()
        with self._lock:
            socket.send_fds(self._control, [b"%08x" % len(content)], files)
            self._control.sendall(content)
            pid = self._control.recv(PREFIX, socket.MSG_WAITALL)
        assert pid, "what forks kilonova has ended"
        return int(pid, 16)

    def _end(self) -> None:
        """Whoever still runs is killed."""
        self._control.close()
        self._process.wait()


_server = cache(_Server)


# In the process that is forked


def serve(control: socket.socket) -> None:
    """Returns in the process that was asked to end; forks become `kilonova`."""
    _load()
    woken, wake = os.pipe()
    waiting: list[socket.socket | int] = [control, woken]
    os.set_blocking(wake, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    ends: dict[int, int] = {}
    while True:
        ready, _, _ = select.select(waiting, [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(ends)
        if control not in ready:
            continue
        length, files, _, _ = socket.recv_fds(control, PREFIX, 4)
        if not length:
            break
        told = control.recv(int(length, 16), socket.MSG_WAITALL)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for file in (woken, wake, control.detach(), *ends.values(), files.pop()):
                os.close(file)
            _become(files, *json.loads(told))
        ends[pid] = files.pop()
        for file in files:
            os.close(file)
        control.sendall(b"%08x" % pid)
    for pid in ends:
        os.kill(pid, signal.SIGKILL)


def _load() -> None:
    import kilonova

    for name in LATE:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(kilonova.__path__, "kilonova."):
        if not module.name.startswith(NOT_LOADED):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


def _reap(ends: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = found
            end = ends.pop(pid)
            with suppress(BrokenPipeError):
                os.write(end, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(end)


def _become(files: list[int], arguments: list[str], environ: dict[str, str], folder: str) -> NoReturn:
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
    with socket.socket(fileno=int(sys.argv[1])) as asking:
        serve(asking)
