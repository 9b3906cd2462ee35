"""Connections of a host to volumes by os-brick, scripted here: this machine has no storage that it could connect."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kilonova.config import Config
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import os_brick_process, programs, volume_connections
from kilonova.hosts.drivers.libvirt.volume_connections import VolumeConnections
from kilonova.hosts.messages import Disk
from tests.support import run

A, B, VOLUME = "guest-a", "guest-b", "volume-1"
STORAGE = {"target_iqn": "t-1", "password": "geheim"}


class Connections(VolumeConnections):
    """`calls` are the requests to os-brick: verb and target. `failing` verbs fail."""

    def __init__(self, directory: Path) -> None:
        config = Config(data=str(directory))
        super().__init__("one", config, directory / "mounts")
        self.records = directory / "volume_connections"
        self.calls: list[tuple[str, str]] = []
        self.requests: list[Any] = []
        self.failing: set[str] = set()

    async def _call(self, request: Any) -> Any:
        target = request.get("data", {}).get("target_iqn", "")
        self.calls.append((request["verb"], target))
        self.requests.append(request)
        if request["verb"] in self.failing:
            raise DriverError("the storage does not respond")
        return {"path": f"/dev/{target}", "type": "block"} if request["verb"] == "connect" else {"initiator": "iqn.x"}

    def names(self) -> set[str]:
        return {path.name for path in self.records.glob("*@*")}


@pytest.fixture
def connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Connections:
    monkeypatch.setattr(volume_connections, "is_installed", lambda: True)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return Connections(tmp_path)


def disk(kind: str = "scaleio", **data: Any) -> Disk:
    connection = {"driver_volume_type": kind, "data": {**STORAGE, "attachment_id": "x", **data}}
    return Disk(volume_id=VOLUME, connection=connection)


def test_connect_and_disconnect(connections: Connections) -> None:
    async def scenario() -> None:
        for _ in range(2):
            connected = await connections.connect(A, disk())
            assert connected.connection["data"]["device_path"] == "/dev/t-1"
        # The path of an earlier connection is not part of the connection.
        assert await connections.connect(A, connected) == connected
        assert connections.names() == {f"{VOLUME}@{A}"}
        (record,) = connections.records.glob("*@*")
        assert record.stat().st_mode & 0o777 == 0o600
        await connections.extend(A, disk())
        for _ in range(2):
            await connections.disconnect(A, VOLUME)
        assert connections.calls == [("connect", "t-1")] * 3 + [("extend", "t-1"), ("disconnect", "t-1")]
        assert connections.requests[-1]["device"] == {"path": "/dev/t-1", "type": "block"}
        assert connections.names() == set()

    run(scenario())


def test_volume_stays_connected_for_another_guest(connections: Connections) -> None:
    async def scenario() -> None:
        await connections.connect(A, disk())
        await connections.connect(B, disk(attachment_id="y"))
        await connections.disconnect(A, VOLUME)
        assert ("disconnect", "t-1") not in connections.calls
        assert connections.names() == {f"{VOLUME}@{B}"}
        await connections.disconnect_all(B)
        assert connections.calls[-1] == ("disconnect", "t-1")
        assert connections.names() == set()

    run(scenario())


LUNS = {"target_iqns": ["t-1", "t-2"], "target_luns": [1, 1], "target_portals": ["10.0.0.1:3260", "10.0.0.2:3260"]}


@pytest.mark.parametrize(
    ("one", "other", "is_kept"),
    [
        ({}, {"access_mode": "ro", "qos_specs": {"a": 1}, "cacheable": True, "auth_password": "other"}, True),
        (LUNS, {key: value[::-1] for key, value in LUNS.items()}, True),
        (LUNS, {"target_lun": 1, "target_portal": "10.0.0.2:3260"}, True),
        (LUNS, {**LUNS, "target_luns": [2, 2]}, False),
        ({}, {"target_iqn": "t-2"}, False),
        # Another kind of storage, of which nothing is known.
        ({"target_iqn": None, "x": 1}, {"target_iqn": None, "x": 2}, True),
        ({"nqn": "n-1", "vol_uuid": "1"}, {"nqn": "n-1", "vol_uuid": "2"}, False),
    ],
)
def test_volume_of_another_guest_is_found_by_its_location(
    connections: Connections, one: dict[str, Any], other: dict[str, Any], is_kept: bool
) -> None:
    async def scenario() -> None:
        await connections.connect(A, disk(**one))
        await connections.connect(B, disk(**other))
        await connections.disconnect(A, VOLUME)
        assert ("disconnect" not in {verb for verb, _ in connections.calls}) is is_kept

    run(scenario())


def test_failed_connection_leaves_nothing(connections: Connections) -> None:
    async def scenario() -> None:
        connections.failing = {"connect"}
        with pytest.raises(
            DriverError, match=r"os-brick on one cannot connect volume volume-1 \(scaleio\): the storage"
        ):
            await connections.connect(A, disk())
        assert connections.names() == set()
        # A guest that has the volume keeps it.
        connections.failing = set()
        await connections.connect(A, disk())
        connections.failing = {"connect"}
        with pytest.raises(DriverError):
            await connections.connect(A, disk())
        assert connections.names() == {f"{VOLUME}@{A}"}

    run(scenario())


def test_failed_disconnection(connections: Connections) -> None:
    """A detach is repeated. A guest that has ended does not wait for its storage."""

    async def scenario() -> None:
        await connections.connect(A, disk())
        connections.failing = {"disconnect"}
        with pytest.raises(DriverError, match="cannot disconnect"):
            await connections.disconnect(A, VOLUME)
        assert connections.names() == {f"{VOLUME}@{A}"}
        await connections.disconnect_all(A)
        assert connections.requests[-1]["ignore_errors"] is True
        assert connections.names() == set()

    run(scenario())


def test_failed_disconnection_is_repeated(connections: Connections) -> None:
    """By the agent's next start, and before the volume is connected again."""

    async def scenario() -> None:
        for retry in ("start", "connect"):
            await connections.connect(A, disk())
            connections.failing = {"disconnect"}
            await connections.disconnect_all(A)
            await connections.retry_disconnections()
            connections.failing, connections.calls = set(), []
            if retry == "start":
                await connections.retry_disconnections()
                assert connections.calls == [("disconnect", "t-1")]
                assert connections.requests[-1]["device"] == {"path": "/dev/t-1", "type": "block"}
            else:
                await connections.connect(B, disk())
                assert connections.calls == [("disconnect", "t-1"), ("connect", "t-1")]
            connections.calls = []
            await connections.retry_disconnections()
            assert connections.calls == []

    run(scenario())


@pytest.mark.parametrize("is_same_volume", [True, False])
def test_disconnection_is_not_repeated_once_the_location_is_used(
    connections: Connections, is_same_volume: bool
) -> None:
    """The storage may have put another volume there."""

    async def scenario() -> None:
        await connections.connect(A, disk(volume_id=VOLUME))
        connections.failing = {"disconnect"}
        await connections.disconnect_all(A)
        other = msgspec.structs.replace(disk(volume_id="volume-2"), volume_id="volume-2")
        used = disk(volume_id=VOLUME) if is_same_volume else other
        await connections.connect(B, used)
        connections.failing, connections.calls = set(), []
        await connections.retry_disconnections()
        await connections.disconnect(B, used.volume_id)
        await connections.retry_disconnections()
        assert connections.calls == [("disconnect", "t-1")]

    run(scenario())


def test_changed_connection_replaces_the_old_one(connections: Connections) -> None:
    async def scenario() -> None:
        await connections.connect(A, disk())
        await connections.connect(A, disk(target_iqn="t-2"))
        assert connections.calls == [("connect", "t-1"), ("disconnect", "t-1"), ("connect", "t-2")]

    run(scenario())


def test_interrupted_connection_is_found(connections: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async def killed(request: Any) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(connections, "_call", killed)
            await connections.connect(A, disk())
        record = connections.find(A, VOLUME)
        assert record is not None
        assert record.device is None
        await connections.disconnect(A, VOLUME)
        assert connections.calls == [("disconnect", "t-1")]

    run(scenario())


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("iscsi", r"requires iscsiadm \(Debian's package open-iscsi\) on one"),
        ("nvmeof", r"requires nvme \(Debian's package nvme-cli\) on one"),
    ],
)
def test_missing_program(connections: Connections, monkeypatch: pytest.MonkeyPatch, kind: str, message: str) -> None:
    monkeypatch.setattr(programs, "find", lambda program: None)
    with pytest.raises(DriverError, match=message):
        run(connections.connect(A, disk(kind)))
    assert connections.calls == []
    assert connections.names() == set()


def test_properties_are_read_again_in_the_background(connections: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        for _ in range(2):
            assert await connections.properties() == {"initiator": "iqn.x"}
        assert connections.calls == [("properties", "")]
        connections.failing = {"properties"}
        for _ in range(2):
            # After a failure these are the last known ones.
            monkeypatch.setattr(connections, "_properties_until", 0.0)
            assert await connections.properties() == {"initiator": "iqn.x"}
            assert connections._reading is not None
            await connections._reading
        assert connections.calls == [("properties", "")] * 3

    run(scenario())


@pytest.mark.parametrize("hanging", [False, True])
def test_host_has_no_properties_without_an_answer(
    connections: Connections, monkeypatch: pytest.MonkeyPatch, caplog: Any, hanging: bool
) -> None:
    async def hang(request: Any) -> Any:
        await asyncio.Event().wait()

    async def scenario() -> None:
        with monkeypatch.context() as patch:
            if hanging:
                patch.setattr(volume_connections, "_PROPERTIES_TIMEOUT_SECONDS", 0.1)
                patch.setattr(connections, "_call", hang)
            connections.failing = {"properties"}
            assert await connections.properties() == {}
            assert ("no answer in 0.1 s" if hanging else "the storage does not respond") in caplog.text
        # Callers do not wait for each attempt.
        connections.calls = []
        assert await connections.properties() == {}
        assert connections.calls == []
        connections.failing = set()
        monkeypatch.setattr(connections, "_properties_until", 0.0)
        assert await connections.properties() == {"initiator": "iqn.x"}

    run(scenario())


def test_unprivileged_agent_or_missing_package(connections: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(connections.properties()) == {"initiator": "iqn.x"}
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(DriverError, match="root privileges"):
        run(connections.connect(A, disk()))
    assert run(connections.properties()) == {}
    monkeypatch.setattr(volume_connections, "is_installed", lambda: False)
    with pytest.raises(DriverError, match="os-brick: it is not installed on one"):
        run(connections.connect(A, disk()))


def test_error_of_a_command_has_no_arguments() -> None:
    error = RuntimeError("iscsiadm -v geheim")
    error.cmd, error.stderr = "iscsiadm -m node -v geheim", "no records\nfound"  # type: ignore[attr-defined]
    assert os_brick_process.error_text(error) == "iscsiadm: no records found"
    assert os_brick_process.error_text(ValueError("not\nfound")) == "not found"
    assert os_brick_process.error_text(ValueError()) == "ValueError"
