"""Clouds of two real hosts that tests share, one after the other, and the stock client for them."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from pathlib import Path
from typing import Any

from tests.support.virt_cloud import RealCloud, real_cloud

# A link to a screen is good for so long.
LINK_SECONDS = 300
# Hosts count as down where a test says so, and never because the machine is busy.
_PATIENT = {"hosts": {"down_seconds": 60.0}}
KINDS: dict[str, dict[str, Any]] = {
    # Agents and hosts die, and operations soon go on without them.
    "short_timeouts": {"more": _PATIENT},
    # The same, where hosts have one directory for the disks of guests.
    "shared_disks": {"more": _PATIENT, "shared": True},
    "long_timeouts": {"more": {"console": {"token_seconds": LINK_SECONDS}}, "steady": True},
}


class Clouds:
    """One runs at a time: even an idle one takes some of the machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kind = ""
        self._numbers = itertools.count()
        self._cloud: RealCloud | None = None
        self._end = contextlib.ExitStack()

    def get(self, kind: str) -> RealCloud:
        if self._cloud is None or self._kind != kind:
            self.close()
            self._kind = kind
            data = self._directory / f"{kind}-{next(self._numbers)}" / "data"
            data.parent.mkdir()
            self._cloud = self._end.enter_context(real_cloud(data, **KINDS[kind]))
        return self._cloud

    def close(self) -> None:
        self._cloud = None
        self._end.close()


class Client:
    def __init__(self, program: Path, cloud: RealCloud) -> None:
        self._program = program
        self._settings = {
            "OS_CLOUD": "kilonova",
            "OS_CLIENT_CONFIG_FILE": str(cloud.data / "clouds.yaml"),
            "OS_COMPUTE_API_VERSION": "2.96",
        }

    def __call__(self, command: str) -> str:
        done = subprocess.run(
            [self._program, *command.split()], capture_output=True, text=True, check=False, env=self._settings
        )
        assert done.returncode == 0, f"openstack {command}: {done.stderr}"
        return done.stdout


def delete(cloud: RealCloud, *servers: str) -> None:
    """And nothing is left of any guest."""
    for server in servers:
        cloud.client().delete("compute", f"/servers/{server}")
    for server in servers:
        cloud.wait_gone(server)
    cloud.wait_clean()


def make_network(cloud: RealCloud, name: str, cidr: str) -> str:
    client = cloud.client()
    made: str = client.post("network", "/networks", {"network": {"name": name}}).json()["network"]["id"]
    subnet = {"network_id": made, "ip_version": 4, "cidr": cidr, "name": name}
    assert client.post("network", "/subnets", {"subnet": subnet}).status == 201
    return made
