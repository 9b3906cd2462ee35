"""Shared clouds of two libvirt hosts, and the stock client for them."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from pathlib import Path
from typing import Any

from tests.support.virt_cloud import RealCloud, real_cloud

CONSOLE_URL_SECONDS = 300
# Long, because hosts of a busy machine report late.
_LONG_DOWN_TIMEOUT = {"hosts": {"down_seconds": 60.0}}
CLOUD_KINDS: dict[str, dict[str, Any]] = {
    # For tests in which agents and hosts fail: operations soon continue without them.
    "short_timeouts": {"settings": _LONG_DOWN_TIMEOUT},
    # The same, with shared storage.
    "shared_disks": {"settings": _LONG_DOWN_TIMEOUT, "shared_storage": True},
    "long_timeouts": {"settings": {"console": {"token_seconds": CONSOLE_URL_SECONDS}}, "long_timeouts": True},
}


class Clouds:
    """Runs one cloud at a time, because even an idle cloud takes CPU time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kind = ""
        self._numbers = itertools.count()
        self._cloud: RealCloud | None = None
        self._exit_stack = contextlib.ExitStack()

    def get(self, kind: str) -> RealCloud:
        if self._cloud is None or self._kind != kind:
            self.close()
            self._kind = kind
            data = self._directory / f"{kind}-{next(self._numbers)}" / "data"
            data.parent.mkdir()
            self._cloud = self._exit_stack.enter_context(real_cloud(data, **CLOUD_KINDS[kind]))
        return self._cloud

    def close(self) -> None:
        self._cloud = None
        self._exit_stack.close()


class OpenstackClient:
    """Runs the stock client as the administrator."""

    def __init__(self, program: Path, cloud: RealCloud) -> None:
        self._program = program
        self._environ = {
            "OS_CLOUD": "kilonova",
            "OS_CLIENT_CONFIG_FILE": str(cloud.data / "clouds.yaml"),
            "OS_COMPUTE_API_VERSION": "2.96",
        }

    def __call__(self, command: str) -> str:
        done = subprocess.run(
            [self._program, *command.split()], capture_output=True, text=True, check=False, env=self._environ
        )
        assert done.returncode == 0, f"openstack {command}: {done.stderr}"
        return done.stdout


def delete_servers(cloud: RealCloud, *servers: str) -> None:
    """Delete the servers and wait until the hosts are clean."""
    for server in servers:
        cloud.client().delete("compute", f"/servers/{server}")
    for server in servers:
        cloud.wait_until_deleted(server)
    cloud.wait_until_clean()


def make_network(cloud: RealCloud, name: str, cidr: str) -> str:
    client = cloud.client()
    network_id: str = client.post("network", "/networks", {"network": {"name": name}}).json()["network"]["id"]
    subnet = {"network_id": network_id, "ip_version": 4, "cidr": cidr, "name": name}
    assert client.post("network", "/subnets", {"subnet": subnet}).status == 201
    return network_id
