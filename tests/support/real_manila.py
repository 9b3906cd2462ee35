"""A real Manila with its dummy driver, which trusts the identity service of a cloud.

Manila comes from a virtual environment that `MANILA_VENV` names:

    python3 -m venv /tmp/manila
    /tmp/manila/bin/pip install manila python-manilaclient psycopg2-binary uwsgi 'SQLAlchemy<2.1'

It also needs RabbitMQ (Debian: `rabbitmq-server`) and PostgreSQL. A start takes about a quarter of a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from tests.support.cloud_process import CloudProcess
from tests.support.ports import free_port

VARIABLE = "MANILA_VENV"
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_SECONDS = 120.0


def missing() -> str:
    """Why Manila cannot run here; empty if it can."""
    programs = os.environ.get(VARIABLE)
    if not programs:
        return f"{VARIABLE} names no virtual environment with Manila: see tests/support/real_manila.py"
    if not (Path(programs) / "bin/manila-share").exists():
        return f"{VARIABLE}: {programs} has no Manila"
    return "" if RABBITMQ.exists() else "RabbitMQ is not installed: apt install rabbitmq-server"


class RealManila:
    """`url` is known before the start, so that the cloud can be configured with it."""

    def __init__(self, directory: Path, database_url: str) -> None:
        self.directory = directory
        self.database_url = database_url.replace("postgresql:", "postgresql+psycopg2:", 1)
        self.programs = Path(os.environ[VARIABLE]) / "bin"
        self.port, self._broker_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._config = directory / "manila.conf"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self._processes)):
            self.kill(name)

    def start(self, cloud: CloudProcess) -> None:
        """Start everything. `cloud` runs already."""
        self._config.write_text(self._settings(cloud))
        self._start_broker()
        sync = [self.programs / "manila-manage", "--config-file", self._config, "db", "sync"]
        subprocess.run(sync, check=True, capture_output=True)
        wait_until(lambda: listens(self._broker_port), "RabbitMQ listens")
        for service in ("scheduler", "share"):
            self._spawn(service, [self.programs / f"manila-{service}", "--config-file", self._config])
        self.start_api()

    def start_api(self) -> None:
        """Clients keep connections open, which this server cannot: it says so."""
        options = ["--enable-threads", "--threads", "4", "--lazy-apps", "--die-on-term", "--need-app"]
        options += ["--http-socket", f"127.0.0.1:{self.port}", "--add-header", "Connection: close"]
        application = ["--module", "manila.wsgi.api:application", "--pyargv", f"--config-file {self._config}"]
        self._spawn("api", [self.programs / "uwsgi", *options, *application])
        wait_until(lambda: listens(self.port), "Manila listens")

    def kill(self, name: str) -> None:
        """Kill a service with the processes that it has started."""
        process = self._processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _start_broker(self) -> None:
        home = self.directory / "rabbitmq"
        home.mkdir()
        for name in ("env", "plugins"):
            (home / name).touch()
        (home / "conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self._broker_port}\n")
        mapper = free_port()
        environ = {
            **os.environ,
            "HOME": str(home),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_CONF_ENV_FILE": str(home / "env"),
            "RABBITMQ_CONFIG_FILE": str(home / "conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_NODENAME": f"manila{mapper}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -kernel inet_dist_use_interface {127,0,0,1} +sbwt none",
        }
        self._spawn("epmd", ["epmd"], environ)
        wait_until(lambda: listens(mapper), "epmd listens")
        self._spawn("rabbitmq", [RABBITMQ], environ)

    def _spawn(self, name: str, command: Sequence[str | Path], environ: dict[str, str] | None = None) -> None:
        with (self.directory / f"{name}.out").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ, start_new_session=True
            )

    def _settings(self, cloud: CloudProcess) -> str:
        auth_url = cloud.endpoints["auth_url"].removesuffix("/v3")
        password = json.loads((cloud.data / "secrets.json").read_text())["passwords"]["kilonova"]
        etc = self.programs.parent / "etc/manila"
        return f"""[DEFAULT]
api_paste_config = {etc}/api-paste.ini
rootwrap_config = {etc}/rootwrap.conf
auth_strategy = keystone
transport_url = rabbit://guest:guest@127.0.0.1:{self._broker_port}/
enabled_share_backends = dummy
enabled_share_protocols = NFS
default_share_type = default
state_path = {self.directory}/state
host = manila
log_dir = {self.directory}
[dummy]
share_backend_name = dummy
share_driver = manila.tests.share.drivers.dummy.DummyDriver
driver_handles_share_servers = False
[database]
connection = {self.database_url}
[oslo_concurrency]
lock_path = {self.directory}/lock
[keystone_authtoken]
www_authenticate_uri = {auth_url}
auth_url = {auth_url}
auth_type = password
username = kilonova
password = {password}
project_name = service
user_domain_name = Default
project_domain_name = Default
"""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(met: Callable[[], object], what: str) -> None:
    until = time.monotonic() + START_SECONDS
    while not met():
        assert time.monotonic() < until, f"not in time: {what}"
        time.sleep(0.1)
