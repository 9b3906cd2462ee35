"""Preflight checks of a libvirt host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kilonova import tiny
from kilonova.config import Config
from kilonova.hosts.drivers.libvirt import hardware, preflight, programs, volume_connections
from tests.support.cloud_process import KILONOVA


@pytest.fixture
def config(tmp_path: Path) -> Config:
    made = Config(data=str(tmp_path / "data"))
    made.libvirt.uri = f"qemu+unix:///system?socket={tmp_path}/none"
    return made


@pytest.fixture
def with_libvirt() -> None:
    pytest.importorskip("libvirt")


@pytest.mark.usefixtures("with_libvirt")
def test_unreachable_libvirt(config: Config) -> None:
    (line,) = [line for line in preflight.missing(config) if "does not respond" in line]
    assert "apt install libvirt-daemon-system" in line
    assert "\n" not in line


def test_unreadable_certificates(config: Config) -> None:
    assert not any(line.startswith("agent: ") for line in preflight.missing(config))
    config.agent.ca_file = config.agent.cert_file = "/nowhere.pem"
    (line,) = [line for line in preflight.missing(config) if line.startswith("agent: ")]
    assert "certificates cannot be read" in line


def test_missing_libvirt_python(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libvirt", None)
    (line,) = [line for line in preflight.missing(config) if "libvirt-python" in line]
    assert "pip install 'kilonova[libvirt]'" in line


def test_missing_programs_are_listed_with_their_package(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "find", lambda _: None)
    lines = preflight.missing(config)
    for program, package in {"qemu-img": "qemu-utils", "nft": "nftables", "dnsmasq": "dnsmasq-base"}.items():
        assert any(line.startswith(f"{program} is missing: apt install {package}") for line in lines), program
    assert any("genisoimage" in line for line in preflight.notes(config))
    config.bridges.enabled = False
    assert not any("nft" in line for line in preflight.missing(config))
    assert any("no networks" in line for line in preflight.notes(config))


def test_real_neutron_needs_no_tools_for_built_in_networks(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "find", lambda _: None)
    monkeypatch.setitem(sys.modules, "os_vif", None)
    config.identity.auth_url = "http://keystone.example/v3"
    lines = preflight.missing(config)
    assert not any("nft" in line or "dnsmasq" in line for line in lines)
    (line,) = [line for line in lines if "os-vif" in line]
    assert "pip install 'kilonova[libvirt]'" in line
    assert not any("networks" in line for line in preflight.notes(config))
    # An agent does not know the network service: it may be Neutron.
    agent = Config(data=config.data)
    agent.bridges.enabled = False
    assert not any("os-vif" in line for line in preflight.missing(agent))
    (note,) = [line for line in preflight.notes(agent) if "bridges.enabled is off" in line]
    assert "pip install 'kilonova[libvirt]'" in note


def test_missing_os_brick(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_connections, "is_installed", lambda: False)
    assert not any("os-brick" in line for line in preflight.notes(config))
    config.volume.url = "http://cinder"
    assert any(line.startswith("os-brick is missing") for line in preflight.notes(config))


def test_no_hardware_virtualization(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "kvm_problem", lambda: "/dev/kvm does not exist")
    assert any("emulated" in line for line in preflight.notes(config))
    assert not any("kvm" in line for line in preflight.missing(config))
    config.libvirt.virt_type = "kvm"
    assert any("libvirt.virt_type is kvm" in line for line in preflight.missing(config))


def test_first_image(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "missing_packages", lambda: ["mtools", "syslinux"])
    (line,) = preflight.first_image(config)
    assert "cannot be built: apt install mtools syslinux, " in line
    monkeypatch.setattr(tiny, "missing_packages", list)
    (line,) = preflight.first_image(config)
    assert "is being built" in line
    images = config.data_dir / "images"
    images.mkdir(parents=True)
    assert preflight.first_image(config), "there is still none"
    (images / "one").touch()
    assert not preflight.first_image(config)


def test_kvm_requires_cpu_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware.kvm_problem.cache_clear()
    monkeypatch.setattr(hardware, "cpu_flags", lambda: frozenset({"fpu"}))
    assert hardware.kvm_problem()
    hardware.kvm_problem.cache_clear()


def test_networks_require_root(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert any("require root" in line for line in preflight.missing(config))


@pytest.mark.parametrize("prefix", ["", "k", "kilonova-net", "KN", "1kn", "k n", 'kn"'])
def test_invalid_interface_prefix(config: Config, prefix: str) -> None:
    assert not any("bridges.prefix" in line for line in preflight.missing(config))
    config.bridges.prefix = prefix
    (line,) = [line for line in preflight.missing(config) if "bridges.prefix" in line]
    assert repr(prefix) in line
    assert "15 characters" in line


def test_invalid_blocked_addresses(config: Config) -> None:
    config.bridges.blocked_addresses = ["10.0.0.0/8", "192.0.2.1", "fd00::/8", "10.0.0.1/8", "db.example"]
    lines = [line for line in preflight.missing(config) if "bridges.blocked_addresses" in line]
    assert [line.split("'")[1] for line in lines] == ["10.0.0.1/8", "db.example"]


def test_directory_that_qemu_cannot_enter(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr(preflight, "_qemu_user", lambda: nobody)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    config.agent.instances_path = str(closed / "instances")
    (line,) = [line for line in preflight.missing(config) if "cannot enter" in line]
    assert "QEMU runs as nobody" in line
    # The reported directory may also be one of pytest's, which are closed too.
    assert "agent.instances_path" in line


def test_command_fails_with_findings_on_stderr(tmp_path: Path) -> None:
    environ = {**os.environ, "KILONOVA_LIBVIRT__URI": f"qemu+unix:///system?socket={tmp_path}/none", "PATH": "/nowhere"}
    command = [KILONOVA, "up", "--driver", "libvirt", "--data", str(tmp_path / "data"), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=120)
    assert done.returncode == 1
    assert "libvirt" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()
