"""The stock client loaded once, and forked for every command: its start takes longer than most of what it does.

`with forking(directory): …` puts an `openstack` into `directory` that runs like the real one: the same program, with
the arguments, environment, folder and files of its caller, in a process of its own. Only what it waits for is looked at
more often than every five seconds.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = len("00000000")
LOOK_EVERY = 0.1

_SHIM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as there:
    there.connect({socket!r})
    told = json.dumps([sys.argv, dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(there, [b"%08x" % len(told)], [0, 1, 2])
    there.sendall(told)
    sys.exit(int(there.recv(16) or 70))
"""


@contextmanager
def forking(directory: Path) -> Iterator[None]:
    place = directory / "openstack.socket"
    shim = directory / "openstack"
    shim.write_text(_SHIM.format(python=sys.executable, socket=str(place)))
    shim.chmod(0o755)
    with subprocess.Popen([sys.executable, "-m", __name__, str(place)], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            server.terminate()


def serve(place: str) -> None:
    _load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        listening.listen()
        print("ready", flush=True)
        while True:
            asking, _ = listening.accept()
            with asking:
                if os.fork() == 0:
                    listening.close()
                    _answer(asking)


def _load() -> None:
    """Every command, so that a fork has nothing to import."""
    import openstackclient
    import openstackclient.shell

    for package in (openstackclient, importlib.import_module("osc_placement")):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".tests" not in module.name:
                with suppress(ImportError):
                    importlib.import_module(module.name)


def _answer(asking: socket.socket) -> None:
    status = 70
    try:
        length, files, _, _ = socket.recv_fds(asking, PREFIX, 3)
        for number, file in enumerate(files):
            os.dup2(file, number)
        told = asking.recv(int(length, 16), socket.MSG_WAITALL)
        status = _run(*json.loads(told))
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        asking.sendall(str(status).encode())
        os._exit(0)


def _run(arguments: list[str], environ: dict[str, str], folder: str) -> int:
    from openstackclient.shell import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(float(seconds), LOOK_EVERY))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = arguments
    if environ.get("PYTHONUNBUFFERED"):  # which Python reads once, at the start
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    try:
        return int(main(arguments[1:]) or 0)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


if __name__ == "__main__":
    serve(sys.argv[1])
