"""Runs stock clients by forking a process that has loaded them, because their start takes longer than most commands.

`with forked_clients(directory): …` creates an `openstack` in `directory` that behaves like the real one: it runs in a
separate process with the caller's arguments, environment, directory and files. As the only difference, it polls more
often. Where python-novaclient is installed, there is a `nova`, too.
"""

from __future__ import annotations

import importlib
import importlib.util
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

ROOT = Path(__file__).parents[2]
# The package of each command; its module `shell` has the function `main`.
PACKAGES = {"openstack": "openstackclient", "nova": "novaclient"}
LENGTH_DIGITS = len("00000000")
MAX_SLEEP_SECONDS = 0.1

_SHIM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({socket!r})
    message = json.dumps([sys.argv, dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(server, [b"%08x" % len(message)], [0, 1, 2])
    server.sendall(message)
    sys.exit(int(server.recv(16) or 70))
"""


@contextmanager
def forked_clients(directory: Path, clouds_directory: Path | None = None) -> Iterator[None]:
    """`clouds_directory`: has the clouds.yaml for commands without OS_CLIENT_CONFIG_FILE.

    The clients look for it in the directory in which they were imported.
    """
    socket_path = directory / "clients.socket"
    for command in _installed_commands():
        shim = directory / command
        shim.write_text(_SHIM.format(python=sys.executable, socket=str(socket_path)))
        shim.chmod(0o755)
    command_line = [sys.executable, "-m", __name__, str(socket_path)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, cwd=clouds_directory, env=environ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            server.terminate()


def _installed_commands() -> list[str]:
    return [command for command, package in PACKAGES.items() if importlib.util.find_spec(package)]


def serve(socket_path: str) -> None:
    _load_commands()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(socket_path)
        listening.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listening.accept()
            with connection:
                if os.fork() == 0:
                    listening.close()
                    _handle_connection(connection)


def _load_commands() -> None:
    """Import all commands, so that a fork need not import them."""
    for name in (*map(PACKAGES.get, _installed_commands()), "osc_placement"):
        assert name is not None
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if ".tests" not in module.name:
                with suppress(ImportError):
                    importlib.import_module(module.name)


def _handle_connection(connection: socket.socket) -> None:
    status = 70
    try:
        length, files, _, _ = socket.recv_fds(connection, LENGTH_DIGITS, 3)
        for number, file in enumerate(files):
            os.dup2(file, number)
        message = connection.recv(int(length, 16), socket.MSG_WAITALL)
        status = _run_client(*json.loads(message))
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        connection.sendall(str(status).encode())
        os._exit(0)


def _run_client(arguments: list[str], environ: dict[str, str], folder: str) -> int:
    main = importlib.import_module(f"{PACKAGES[Path(arguments[0]).name]}.shell").main
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(float(seconds), MAX_SLEEP_SECONDS))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = arguments
    if environ.get("PYTHONUNBUFFERED"):  # Python reads it only at the start
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    try:
        return int(main(arguments[1:]) or 0)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


if __name__ == "__main__":
    serve(sys.argv[1])
