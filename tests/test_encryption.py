"""Settings that would send data over a network without encryption."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.agent_process import check as check_agent
from kilonova.config import Config, load
from kilonova.encryption import is_loopback, problems_of_agent, problems_of_cloud
from kilonova.startup_checks import CannotStart, Roles, check


def problems(*, worker: bool = True, **flags: Any) -> list[str]:
    return problems_of_cloud(config(**flags), api=True, worker=worker, host=False)


def agent_problems(**flags: Any) -> list[str]:
    return problems_of_agent(config(driver="libvirt", **flags))


def config(**flags: Any) -> Config:
    return load(environ={}, flags={name.replace("__", "."): value for name, value in flags.items()})


CLOUD = [
    ({"host": "10.0.0.1"}, "host", "tls_cert"),
    ({"host": "0.0.0.0"}, "host", "tls_cert"),
    ({"host": "::"}, "host", "tls_cert"),
    ({"host": "cloud.example"}, "host", "tls_cert"),
    ({"host": "10.0.0.1", "placement__port": 8778}, "host", "tls_cert"),
    ({"public_url": "http://cloud.example"}, "public_url", "https://"),
    ({"console__url": "http://cloud.example"}, "console.url", "https://"),
    ({"messaging__url": "nats://10.0.0.1:4222"}, "messaging.url", "tls://"),
    ({"messaging__url": "10.0.0.1:4222"}, "messaging.url", "tls://"),
    ({"messaging__url": "nats://127.0.0.1,nats://10.0.0.1"}, "messaging.url", "tls://"),
    ({"messaging__url": "ws://[fd00::1]:80"}, "messaging.url", "tls://"),
    ({"volume__nbd_address": "10.0.0.1"}, "volume.nbd_address", "volume.nbd_tls"),
    ({"volume__url": "http://cinder.example:8776"}, "volume.url", "https://"),
    ({"share__url": "http://manila.example:8786"}, "share.url", "https://"),
]
AGENT = [
    ({"agent__image_url": "http://10.0.0.1:8774/image"}, "agent.image_url", "agent.image_ca_file"),
    ({"messaging__url": "nats://10.0.0.1:4222"}, "messaging.url", "tls://"),
    ({"agent__address": "10.0.0.11", "messaging__url": "tls://10.0.0.1"}, "agent.address", "agent.cert_file"),
    ({"agent__address": "10.0.0.11"}, "libvirt.migration_uri", "qemu+tls://"),
    ({"libvirt__migration_uri": "qemu+tcp://10.0.0.11/system"}, "libvirt.migration_uri", "qemu+tls://"),
    ({"agent__address": "10.0.0.11"}, "libvirt.migration_tls", "to true"),
    ({"libvirt__migration_address": "10.0.0.11"}, "libvirt.migration_tls", "to true"),
]


@pytest.mark.parametrize("flags, setting, instead", CLOUD)
def test_unencrypted_setting_of_cloud_is_refused(flags: dict[str, Any], setting: str, instead: str) -> None:
    (line,) = problems(**flags)
    assert line.startswith(f"{setting}: ")
    assert instead in line
    assert "insecure = true" in line
    with pytest.raises(CannotStart, match=f"^{setting}: "):
        check(config(**flags), Roles())
    check(config(insecure=True, **flags), Roles())


@pytest.mark.parametrize("flags, setting, instead", AGENT)
def test_unencrypted_setting_of_agent_is_refused(flags: dict[str, Any], setting: str, instead: str) -> None:
    (line,) = [line for line in agent_problems(**flags) if line.startswith(f"{setting}: ")]
    assert instead in line
    assert "insecure = true" in line


def test_agent_does_not_start_without_encryption() -> None:
    flags = {"messaging__url": "nats://10.0.0.1:4222", "agent__image_url": "http://10.0.0.1:8774/image"}
    with pytest.raises(CannotStart) as refused:
        check_agent(config(**flags))
    assert [line.partition(":")[0] for line in str(refused.value).splitlines()] == ["messaging.url", "agent.image_url"]
    check_agent(config(insecure=True, **flags))


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"host": "::1", "messaging__url": "nats://localhost:4222", "public_url": "http://127.0.0.1:80"},
        {"host": "0.0.0.0", "tls_cert": "cert.pem", "public_url": "https://cloud.example"},
        {"host": "10.0.0.1", "tls": True},
        {"messaging__url": "tls://10.0.0.1:4222,tls://10.0.0.2:4222"},
        {"messaging__url": "nats://10.0.0.1:4222", "messaging__ca_file": "ca.pem"},
        {"volume__nbd_address": "10.0.0.1", "volume__nbd_tls": "/etc/pki/qemu"},
        {"volume__url": "https://cinder.example:8776"},
        {"share__url": "https://manila.example:8786"},
    ],
)
def test_encrypted_and_loopback_settings_of_cloud_are_allowed(flags: dict[str, Any]) -> None:
    assert problems_of_cloud(config(**flags), api=True, worker=True, host=True) == []


def test_encrypted_settings_of_agent_are_allowed() -> None:
    flags = {
        "messaging__url": "tls://10.0.0.1:4222",
        "agent__image_url": "https://10.0.0.1:8774/image",
        "agent__address": "10.0.0.11",
        "agent__cert_file": "cert.pem",
        "libvirt__migration_uri": "qemu+tls://{address}/system",
        "libvirt__migration_tls": True,
    }
    assert agent_problems(**flags) == []


def test_settings_of_other_roles_are_ignored() -> None:
    assert problems_of_cloud(config(host="10.0.0.1"), api=False, worker=True, host=False) == []
    assert problems(worker=False, volume__nbd_address="10.0.0.1") == []


def test_password_of_nats_url_is_not_shown() -> None:
    (line,) = problems(messaging__url="nats://me:hush@10.0.0.1:4222")
    assert "10.0.0.1:4222" in line
    assert "hush" not in line


def test_only_loopback_addresses_are_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.0.1", "::1", "localhost", "a.localhost")))
    assert not any(map(is_loopback, ("", "0.0.0.0", "::", "10.0.0.1", "localhost.example", "127.0.0.1.example")))
