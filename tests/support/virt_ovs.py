"""Open vSwitch on a host of a site, in user space: no kernel module is needed.

switch = OpenSwitch(host)                 # ovsdb-server and ovs-vswitchd, at the paths that libvirt uses
switch.ports("br-int")                    # the names of a bridge's ports
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kilonova.hosts.drivers.libvirt import plug
from tests.support.virt_hosts import Host, Process, require_tools, wait_until

TOOLS = {"ovs-vswitchd": "openvswitch-switch", "ovsdb-server": "openvswitch-switch"}
_SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
_RUN = "/run/openvswitch"
_EXIT_TIMEOUT_SECONDS = 60.0


class OpenSwitch:
    def __init__(self, host: Host) -> None:
        require_tools(TOOLS)
        _require_os_vif()
        self.host = host
        self._directory = host.directory / "ovs"
        self._controller: Process | None = None
        self.start()

    def start(self) -> None:
        """Start it, also again after the host has lost power. The database stays."""
        host, database = self.host, self._directory / "conf.db"
        self._directory.mkdir(exist_ok=True)
        host.execute("mkdir", "-p", _RUN)
        # Only this host sees it there.
        host.execute("mount", "-t", "tmpfs", "none", _RUN)
        if not database.exists():
            host.execute("ovsdb-tool", "create", database, _SCHEMA)
        common = ["--no-chdir", "-vconsole:warn"]
        remote = f"--remote=punix:{_RUN}/db.sock"
        server: list[str | Path] = ["ovsdb-server", database, remote, f"--unixctl={_RUN}/db.ctl", *common]
        self._processes = [host.start_process(server, log="ovsdb")]
        wait_until(lambda: host.execute("ls", _RUN).split().count("db.sock"), "the database of Open vSwitch listens")
        self.vsctl("--no-wait", "init")
        connection = f"unix:{_RUN}/db.sock"
        options = ["--disable-system", f"--unixctl={_RUN}/vswitchd.ctl"]
        self._processes.append(host.start_process(["ovs-vswitchd", connection, *options, *common], log="vswitchd"))

    def join_ovn(self, remote: str) -> None:
        """Start ovn-controller, with OVN's southbound database at `remote`. Neutron then binds ports to the host."""
        require_tools({"ovn-controller": "ovn-host"})
        settings = {
            "system-id": self.host.name,
            "hostname": self.host.name,
            "ovn-remote": remote,
            "ovn-encap-type": "geneve",
            "ovn-encap-ip": self.host.address,
            "ovn-bridge-datapath-type": "netdev",
        }
        external_ids = [f"external_ids:{name}={json.dumps(value)}" for name, value in settings.items()]
        self.vsctl("set", "open_vswitch", ".", *external_ids)
        # It writes its own sockets and reads those of Open vSwitch.
        environ = {"OVN_RUNDIR": _RUN, "OVS_RUNDIR": _RUN}
        options = [f"--pidfile={_RUN}/ovn-controller.pid", "--no-chdir", "-vconsole:warn"]
        command = ["ovn-controller", f"unix:{_RUN}/db.sock", *options]
        self._controller = self.host.start_process(command, env=environ, log="ovn-controller")

    def leave_ovn(self) -> None:
        """Stop ovn-controller, which then removes the host from OVN."""
        if self._controller is not None and self._controller.alive():
            self.host.execute("ovs-appctl", "-t", "ovn-controller", "exit")
            self._controller.outer.wait(_EXIT_TIMEOUT_SECONDS)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.stop()
        self.host.execute("umount", _RUN)

    def vsctl(self, *words: str) -> str:
        return self.host.execute("ovs-vsctl", "--timeout=30", *words).strip()

    def bridges(self) -> list[str]:
        return sorted(self.vsctl("list-br").split())

    def ports(self, bridge: str) -> list[str]:
        return sorted(self.vsctl("list-ports", bridge).split()) if bridge in self.bridges() else []

    def get(self, table: str, record: str, column: str) -> str:
        return self.vsctl("get", table, record, column).strip('"')


def _require_os_vif() -> None:
    """Skip the test without os-vif, which is in the extra `libvirt`; fail it with KILONOVA_REQUIRE_ALL=1."""
    problem = plug.os_vif_problem()
    if problem and os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
        pytest.fail(f"{problem}, and KILONOVA_REQUIRE_ALL=1")
    if problem:
        pytest.skip(problem)
