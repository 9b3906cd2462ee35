"""A temporary NATS server on a free port, and processes of `kilonova agent`.

with NatsServer(tmp_path) as nats:
    with CloudProcess(tmp_path / "data", "--hosts", "0", environ=nats.environ) as cloud:
        with nats.agent(cloud, "host-1") as agent:
            agent.kill(); agent.start()
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

import pytest

from tests.support.cloud_process import KILONOVA, START_TIMEOUT_SECONDS, CloudProcess, NotStarted
from tests.support.parent_death import die_with_parent
from tests.support.ports import free_port


def find_program() -> str:
    found = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
    if found is None:
        if os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
            pytest.fail("nats-server is not installed, and KILONOVA_REQUIRE_ALL=1")
        pytest.skip("nats-server is not installed")
    return found


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path) as server:
        yield server


class NatsServer:
    """`settings` are further lines of the configuration file. The server ends with the test process."""

    def __init__(self, directory: Path, settings: str = "") -> None:
        self.program = find_program()
        self.port = free_port()
        self.directory = directory
        self.file = directory / "nats.conf"
        self.file.write_text(f'host: "127.0.0.1"\nport: {self.port}\n{settings}\n')
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """Environment of control planes and agents, with frequent reports."""
        return {
            "KILONOVA_MESSAGING__URL": self.url,
            "KILONOVA_HOSTS__REPORT_SECONDS": "1",
        }

    def agent(self, cloud: CloudProcess, host: str, **environ: str) -> AgentProcess:
        image_url = cloud.endpoints["image"].removesuffix("/v2")
        return AgentProcess(cloud.data.with_name(f"agent-{host}"), host, self.environ, image_url, environ)

    def __enter__(self) -> NatsServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        with (self.directory / "nats.log").open("ab") as output:
            self.process = subprocess.Popen(
                [self.program, "-c", str(self.file)],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
                process_group=0,
            )
        until = time.monotonic() + START_TIMEOUT_SECONDS
        while self.process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.01)
        raise RuntimeError("nats-server did not start:\n" + (self.directory / "nats.log").read_text()[-2000:])

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            self.process = None


class AgentProcess:
    """A process of `kilonova agent`, by default with simulated guests."""

    def __init__(
        self,
        data: Path,
        host: str,
        environ: Mapping[str, str],
        image_url: str,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self.data = data
        self.host = host
        self.environ = {**environ, "KILONOVA_AGENT__IMAGE_URL": image_url, **(overrides or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> AgentProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running:
            self.kill()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def output(self) -> str:
        return self._output_file.read_text()

    @property
    def log(self) -> str:
        return (self.data / "kilonova.log").read_text()

    @property
    def _output_file(self) -> Path:
        return self.data.with_name(f"{self.data.name}.output")

    def start(self) -> None:
        """Return when the agent serves, perhaps before it is connected. Raises NotStarted."""
        assert not self.running
        with self._output_file.open("w") as output:
            self.process = subprocess.Popen(
                [KILONOVA, "agent", "--data", str(self.data), "--name", self.host],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environ},
            )
        until = time.monotonic() + START_TIMEOUT_SECONDS
        while self.running and time.monotonic() < until:
            if "serving" in self.output:
                return
            time.sleep(0.01)
        code = self.process.poll()
        self.kill()
        raise NotStarted(code, self.output)

    def stop(self, timeout: float = 60.0) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def kill(self) -> None:
        """End the process without cleanup."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
