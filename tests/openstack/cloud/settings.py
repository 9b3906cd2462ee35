"""Where a cloud of OpenStack services keeps its state, and its ports, users and hosts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPTS = Path(__file__).parent / "scripts"
REGION = "RegionOne"
# The password of every user. The services listen on the loopback address only.
PASSWORD = "kilonova"
# Neutron and Cinder send their events as this user, which `kilonova register` creates.
COMPUTE_USER = "kilonova"
DEFAULT_PORT_BASE = 29000
DEFAULT_HOSTS = ("sim-001", "sim-002", "sim-003")

# Added to the base.
PORTS = {
    "memcached": 211,
    "glance": 292,
    "mariadb": 306,
    "epmd": 369,
    "postgres": 432,
    "keystone": 500,
    "ovn-nb": 641,
    "ovn-sb": 642,
    "chassis": 643,
    "rabbitmq": 672,
    "rabbitmq-dist": 673,
    "neutron": 696,
    "compute": 774,
    "cinder-api": 776,
}


@dataclass(frozen=True)
class Settings:
    """Settings of one cloud. Two clouds can run at once if their states and ports differ."""

    state: Path = ROOT / ".openstack/state"
    venv: Path = ROOT / ".openstack/venv"
    venv_is_given: bool = False  # an environment from elsewhere is used as it is
    port_base: int = DEFAULT_PORT_BASE
    hosts: tuple[str, ...] = DEFAULT_HOSTS  # simulated OVN chassis, which ports can be bound to
    plug: str = "auto"  # "auto": a bound port becomes ACTIVE; "manual": `Cloud.plug` makes it ACTIVE
    nfs: bool = False  # Cinder's own NFS driver as a second volume back end

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """The settings that the variables `OPENSTACK_CLOUD_*` give."""

        def variable(name: str, default: str) -> str:
            return environ.get(f"OPENSTACK_CLOUD_{name}") or default

        plug = variable("PLUG", "auto")
        if plug not in ("auto", "manual"):
            raise SystemExit(f"OPENSTACK_CLOUD_PLUG must be auto or manual, not {plug}")
        return cls(
            state=Path(variable("STATE", str(cls.state))).absolute(),
            venv=Path(variable("VENV", str(cls.venv))).absolute(),
            venv_is_given=bool(environ.get("OPENSTACK_CLOUD_VENV")),
            port_base=int(variable("PORT_BASE", str(DEFAULT_PORT_BASE))),
            hosts=tuple(variable("HOSTS", " ".join(DEFAULT_HOSTS)).split()),
            plug=plug,
            nfs=variable("NFS", "0") == "1",
        )

    @property
    def run(self) -> Path:
        return self.state / "run"

    @property
    def log(self) -> Path:
        return self.state / "log"

    @property
    def etc(self) -> Path:
        return self.state / "etc"

    @property
    def bin(self) -> Path:
        return self.venv / "bin"

    def port(self, name: str) -> int:
        return self.port_base + PORTS[name]

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port(name)}"

    def ovsdb(self, database: str) -> str:
        """The address of OVN's "nb" or "sb" database."""
        return f"tcp:127.0.0.1:{self.port(f'ovn-{database}')}"

    @property
    def endpoints(self) -> dict[str, str]:
        """URL by type of service, as in the catalogue."""
        return {
            "identity": f"{self.url('keystone')}/v3",
            "image": self.url("glance"),
            "network": self.url("neutron"),
            "block-storage": f"{self.url('cinder-api')}/v3",
        }
