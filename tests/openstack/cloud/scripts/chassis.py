"""Simulated OVN hosts: writes into the southbound database what ovn-controller would write.

    chassis.py --control PORT [--plug auto|manual] --northbound tcp:127.0.0.1:NORTHBOUND tcp:127.0.0.1:SOUTHBOUND HOST…

The control port takes one JSON object per line and answers each with {} or {"error": text}:

    {"plug_mode": "auto"}               bound ports become ACTIVE ("manual": only by the next line)
    {"plug": PORT, "host": HOST}        the interface of the port appears on the host: the port becomes ACTIVE
    {"unplug": PORT}                    the interface disappears: the port becomes DOWN
    {"hosts": [HOST, …]}                replaces the hosts

This runs in the environment of OpenStack, which has ovsdbapp.
"""

from __future__ import annotations

import argparse
import json
import signal
import socketserver
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable
from typing import Any

warnings.filterwarnings("ignore", message="(?s).*Eventlet")

from ovs.db import idl as ovs_idl  # noqa: E402
from ovsdbapp.backend.ovs_idl import connection, idlutils  # noqa: E402
from ovsdbapp.schema.ovn_northbound import impl_idl as northbound  # noqa: E402
from ovsdbapp.schema.ovn_southbound import impl_idl as southbound  # noqa: E402

TABLES = ("Chassis", "Chassis_Private", "Encap", "Port_Binding", "SB_Global")
PORT_TIMEOUT_SECONDS = 60.0
# How long a host takes to plug a port. Neutron leaves a port DOWN whose host is faster than the request that binds it.
PLUG_SECONDS = 0.5


class Idl(ovs_idl.Idl):  # type: ignore[misc]
    """A copy of the database that reports every change."""

    changed: Callable[[], None] | None = None

    def notify(self, event: str, row: Any, updates: Any = None) -> None:
        if self.changed:
            self.changed()


class Hosts:
    """The simulated hosts in one southbound database."""

    def __init__(self, address: str, northbound_address: str, plug_mode: str) -> None:
        self.work = threading.Event()
        self.ended = threading.Event()
        self.sb = southbound.OvnSbApiIdlImpl(self._connect(address, "OVN_Southbound", TABLES))
        ports = ("Logical_Switch_Port",)
        self.nb = northbound.OvnNbApiIdlImpl(self._connect(northbound_address, "OVN_Northbound", ports))
        self.plug_mode = plug_mode
        self.names: set[str] = set()
        self._lock = threading.Lock()
        # Released ports that northd has not reported as down yet. Neutron would not learn that they were down.
        self._releasing: set[str] = set()
        # When the ports that hosts are about to claim were bound to them.
        self._bound_at: dict[tuple[str, uuid.UUID], float] = {}

    def _connect(self, address: str, database: str, tables: Iterable[str]) -> connection.Connection:
        schema = idlutils.get_schema_helper(address, database)
        for table in tables:
            schema.register_table(table)
        idl = Idl(address, schema)
        idl.changed = self.work.set
        return connection.Connection(idl, timeout=30)

    def rows(self, table: str) -> list[Any]:
        return list(self.sb.tables[table].rows.values())

    def replace(self, hosts: list[str]) -> None:
        """Register these hosts, and remove the others.

        Chassis alone are not enough: Neutron refuses a chassis whose Chassis_Private does not follow `nb_cfg`.
        """
        # Neutron uses the name of a chassis as the id of the agent, which is a UUID.
        names = {str(uuid.uuid5(uuid.NAMESPACE_DNS, host)): host for host in hosts}
        for table in ("Chassis_Private", "Chassis"):
            with self.sb.transaction(check_error=True) as transaction:
                for row in self.rows(table):
                    if row.name not in names:
                        transaction.add(self.sb.db_destroy(table, row.uuid))
        for number, (name, host) in enumerate(names.items(), 1):
            self._register(name, host, f"127.1.{number // 250}.{number % 250 + 1}")
        self.names = set(names)

    def _register(self, name: str, host: str, address: str) -> None:
        config = {
            "datapath-type": "system",
            "iface-types": "geneve,internal,patch,stt,tap,vxlan",
            "ovn-bridge-mappings": "physnet1:br-ex,physnet2:br-ex2",
            "port-up-notif": "true",
            "ovn-chassis-mac-mappings": "",
        }
        with self.sb.transaction(check_error=True) as transaction:
            if not any(row.name == name for row in self.rows("Chassis")):
                command = self.sb.chassis_add(
                    name, ["geneve"], address, hostname=host, other_config=config, external_ids=config
                )
                transaction.add(command)
            if not any(row.name == name for row in self.rows("Chassis_Private")):
                transaction.add(self.sb.db_create("Chassis_Private", name=name, external_ids={"ovn-bridge": "br-int"}))
        private = next(row for row in self.rows("Chassis_Private") if row.name == name)
        with self.sb.transaction(check_error=True) as transaction:
            chassis = self.sb.lookup("Chassis", name)
            transaction.add(self.sb.db_set("Chassis_Private", private.uuid, ("chassis", chassis.uuid)))

    def run(self) -> None:
        """Keep the hosts alive and follow the bindings of ports until the end."""
        while not self.ended.is_set():
            self.work.clear()
            pause = 30.0
            try:
                with self._lock:
                    self._beat()
                    self._forget_released()
                    if self.plug_mode == "auto" and self._follow():
                        pause = PLUG_SECONDS / 5
            except Exception as error:  # e.g. a row was removed meanwhile
                print(f"{type(error).__name__}: {error}", flush=True)
                pause = 0.2
            self.work.wait(pause)

    def _beat(self) -> None:
        """Answer the sequence number of the northbound database: from it Neutron knows that an agent lives."""
        current = self.rows("SB_Global")[0].nb_cfg
        late = [row for row in self.rows("Chassis_Private") if row.name in self.names and row.nb_cfg != current]
        if late:
            answer = (("nb_cfg", current), ("nb_cfg_timestamp", int(time.time() * 1000)))
            with self.sb.transaction(check_error=True) as transaction:
                for row in late:
                    transaction.add(self.sb.db_set("Chassis_Private", row.uuid, *answer))

    def _forget_released(self) -> None:
        """Forget the released ports that northd has reported as down, or that are deleted."""
        if self._releasing:
            up = {row.name for row in self.nb.tables["Logical_Switch_Port"].rows.values() if row.up == [True]}
            self._releasing &= up

    def _follow(self) -> bool:
        """Claim the ports that are bound to the hosts, and release others. Returns whether some are to be claimed."""
        now, bound_at = time.monotonic(), self._bound_at
        self._bound_at = {}
        with self.sb.transaction(check_error=True) as transaction:
            for row in self.rows("Port_Binding"):
                if row.type:
                    continue
                wanted = row.requested_chassis[0] if row.requested_chassis else None
                holder = row.chassis[0] if row.chassis else None
                if wanted is not None and wanted.name in self.names:
                    claimed = holder is not None and holder.uuid == wanted.uuid and row.up == [True]
                    binding = (row.logical_port, wanted.uuid)
                    if claimed or row.logical_port in self._releasing:
                        continue
                    if now >= bound_at.get(binding, now) + PLUG_SECONDS:
                        values = (("chassis", wanted.uuid), ("up", True))
                        transaction.add(self.sb.db_set("Port_Binding", row.uuid, *values))
                    else:
                        self._bound_at[binding] = bound_at.get(binding, now)
                elif holder is not None and holder.name in self.names:
                    self._release(transaction, row)
        return bool(self._bound_at)

    def _release(self, transaction: Any, row: Any) -> None:
        transaction.add(self.sb.db_clear("Port_Binding", row.uuid, "chassis"))
        transaction.add(self.sb.db_set("Port_Binding", row.uuid, ("up", False)))
        self._releasing.add(row.logical_port)

    def obey(self, request: dict[str, Any]) -> None:
        """Execute one request of the control port."""
        if "plug" in request:
            # northd creates the row after Neutron has answered.
            row = self._find_port(request["plug"])
            self._wait_until_down(request["plug"])
            with self._lock:
                self._plug(row, request["host"])
        elif "unplug" in request:
            with self._lock, self.sb.transaction(check_error=True) as transaction:
                for row in self.rows("Port_Binding"):
                    if row.logical_port == request["unplug"] and row.chassis:
                        self._release(transaction, row)
        elif "plug_mode" in request:
            with self._lock:
                self.plug_mode = request["plug_mode"]
        elif "hosts" in request:
            with self._lock:
                self.replace(request["hosts"])
        else:
            raise ValueError(f"unknown request {request}")
        self.work.set()

    def _find_port(self, port: str) -> Any:
        deadline = time.monotonic() + PORT_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            for row in self.rows("Port_Binding"):
                if row.logical_port == port:
                    return row
            time.sleep(0.05)
        raise LookupError(f"OVN has no port {port}")

    def _wait_until_down(self, port: str) -> None:
        deadline = time.monotonic() + PORT_TIMEOUT_SECONDS
        while port in self._releasing and time.monotonic() < deadline:
            self.work.set()
            time.sleep(0.05)

    def _plug(self, row: Any, host: str) -> None:
        chassis = next((chassis for chassis in self.rows("Chassis") if chassis.hostname == host), None)
        if chassis is None:
            raise LookupError(f"OVN has no host {host}")
        with self.sb.transaction(check_error=True) as transaction:
            transaction.add(self.sb.db_set("Port_Binding", row.uuid, ("chassis", chassis.uuid), ("up", True)))


class ControlServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    hosts: Hosts


class ControlHandler(socketserver.StreamRequestHandler):
    server: ControlServer

    def handle(self) -> None:
        for line in self.rfile:
            answer = {}
            try:
                self.server.hosts.obey(json.loads(line))
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulated OVN hosts")
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--plug", choices=("auto", "manual"), default="auto")
    parser.add_argument("--northbound", required=True)
    parser.add_argument("southbound")
    parser.add_argument("hosts", nargs="+")
    arguments = parser.parse_args()
    hosts = Hosts(arguments.southbound, arguments.northbound, arguments.plug)

    def end(*_: object) -> None:
        hosts.ended.set()
        hosts.work.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    hosts.replace(arguments.hosts)
    # It accepts connections when the hosts are registered.
    server = ControlServer(("127.0.0.1", arguments.control), ControlHandler)
    server.hosts = hosts
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hosts.run()


if __name__ == "__main__":
    main()
