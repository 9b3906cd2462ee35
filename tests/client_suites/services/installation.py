"""An installed service of another project, with the broker and the database that its processes need."""

from __future__ import annotations

import configparser
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from tests.client_suites.services import broker
from tests.client_suites.services.broker import Broker
from tests.client_suites.services.database import new_database
from tests.client_suites.services.environment import create_environment
from tests.client_suites.services.process import ServiceProcess
from tests.client_suites.suite import RESULTS_DIRECTORY


class Installation:
    """A context manager that stops everything that it has started. Logs are kept until the next run."""

    def __init__(self, name: str, packages: tuple[str, ...], workspace: Path) -> None:
        """`name` is that of the service's configuration file, too."""
        broker.install()
        self.name = name
        self.workspace = workspace
        self.directory = create_environment(name, packages)
        self._environ = {
            "HOME": str(workspace),
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "PYTHONWARNINGS": "ignore",
        }
        self._logs = RESULTS_DIRECTORY / f"{name}-logs"
        self._stack = ExitStack()

    def __enter__(self) -> Installation:
        self._logs.mkdir(exist_ok=True)
        for log in self._logs.iterdir():
            log.unlink()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def configure(self, settings: configparser.ConfigParser) -> None:
        """Start broker and database, and write the configuration where all processes of the service read it."""
        rabbit = self._stack.enter_context(Broker(self.workspace / "rabbitmq"))
        settings["DEFAULT"]["transport_url"] = rabbit.url
        settings["database"] = {"connection": self._stack.enter_context(new_database())}
        directory = self.workspace / f".{self.name}"
        directory.mkdir()
        with (directory / f"{self.name}.conf").open("w") as file:
            settings.write(file)

    def run(self, program: str, *arguments: str) -> None:
        command = [self.directory / "bin" / program, *arguments]
        with (self._logs / f"{program}.log").open("w") as log:
            subprocess.run(command, env=self._environ, stdout=log, stderr=log, check=True)

    def start_api(self, program: str, port: int) -> None:
        self.start(program, "--host", "127.0.0.1", "--port", str(port), port=port)

    def start(self, program: str, *arguments: str, port: int | None = None, ready: str = "") -> ServiceProcess:
        """Start a program, and wait until it is ready: messages to a program that is not ready are lost."""
        command = [self.directory / "bin" / program, *arguments]
        process = ServiceProcess(command, self._logs / f"{program}.log", self._environ, port=port, ready=ready)
        return self._stack.enter_context(process)
