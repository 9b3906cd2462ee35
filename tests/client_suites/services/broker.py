"""A temporary RabbitMQ on free ports of 127.0.0.1, through which the processes of a service call each other."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType

from tests.client_suites.services.process import ServiceProcess
from tests.support.ports import free_port

# The programs in /usr/sbin change to another user, who cannot write to the directory.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class Broker:
    """Ends with the test process, its epmd included."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.port = free_port()
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),  # has the cookie
            "RABBITMQ_NODENAME": f"kilonova-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(free_port()),
        }
        epmd_port = int(self._environ["ERL_EPMD_PORT"])
        self._epmd = ServiceProcess([_find_program("epmd")], directory / "epmd.log", self._environ, port=epmd_port)
        self._server = ServiceProcess([PROGRAM], directory / "rabbitmq.log", self._environ, port=self.port)

    @property
    def url(self) -> str:
        return f"rabbit://guest:guest@127.0.0.1:{self.port}/"

    def __enter__(self) -> Broker:
        self._epmd.start()
        try:
            self._server.start()
        except BaseException:
            self._epmd.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()
        self._epmd.stop()


def install() -> None:
    """Install RabbitMQ, where that is possible."""
    subprocess.run([Path(__file__).parents[3] / "tools" / "packages", "rabbitmq-server"], check=True)
    if not PROGRAM.exists():
        raise RuntimeError(f"RabbitMQ is missing ({PROGRAM}). On Debian: apt install rabbitmq-server")


def _find_program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is missing. On Debian: apt install erlang-base")
    return found
