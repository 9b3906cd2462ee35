"""Guests keep their volumes when the daemon or the control plane dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kilonova.ids import new_id
from tests.support import run
from tests.support.cloud_process import Client as Api
from tests.support.cloud_process import CloudProcess
from tests.support.virt_hosts import wait_until
from tests.volume.exports import support
from tests.volume.exports.support import CONNECTOR, client, io


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[CloudProcess]:
    support.require()
    running = CloudProcess(tmp_path / "data", "--hosts", "1")
    try:
        with running:
            yield running
    finally:
        if alive(running):
            with contextlib.suppress(ProcessLookupError):  # it may be ending
                os.kill(support.pid_of(running.data), signal.SIGKILL)


def alive(cloud: CloudProcess) -> bool:
    from kilonova.volume.exports.daemon import Daemon

    return Daemon(cloud.data / "exports", "127.0.0.1", 0).is_alive()


def volume(api: Api) -> str:
    created = api.post("volume", "/volumes", {"volume": {"size": 1}}).json()["volume"]
    path = f"/volumes/{created['id']}"
    wait_until(lambda: api.get("volume", path).json()["volume"]["status"] == "available", "the volume is there")
    return str(created["id"])


def attach(cloud: CloudProcess, volume_id: str) -> dict[str, Any]:
    requested = {"volume_uuid": volume_id, "instance_uuid": new_id(), "connector": CONNECTOR}
    admin = cloud.client("kilonova", "3.54")
    response = admin.post("volume", "/attachments", {"attachment": requested})
    assert response.status == 200, response.body
    created: dict[str, Any] = response.json()["attachment"]
    return created


def detach(cloud: CloudProcess, created: dict[str, Any]) -> None:
    response = cloud.client("kilonova", "3.54").delete("volume", f"/attachments/{created['id']}")
    assert response.status == 200, response.body


def test_exports_outlive_the_control_plane(cloud: CloudProcess) -> None:
    created = attach(cloud, volume(cloud.client()))
    connection, pid = created["connection_info"], support.pid_of(cloud.data)
    assert os.getsid(pid) != os.getsid(cloud.pid)

    async def scenario() -> None:
        with client(connection) as guest:
            assert "wrote" in await guest.do("write -P 1 0 512", "wrote")
            cloud.kill()
            assert "wrote" in await guest.do("write -P 2 512 512", "wrote")
            await asyncio.to_thread(cloud.start)
            assert await asyncio.to_thread(cloud.stop) == 0
            assert "wrote" in await guest.do("write -P 3 1024 512", "wrote")
            await asyncio.to_thread(cloud.start)
            assert "wrote" in await guest.do("write -P 4 1536 512", "wrote")

    run(scenario())
    assert support.pid_of(cloud.data) == pid
    detach(cloud, created)
    assert "failed" in run(io(connection, "read 0 512"))
    # Without exports the daemon ends with the control plane.
    assert cloud.stop() == 0
    wait_until(lambda: not alive(cloud), "the daemon ends")


def test_dead_daemon_is_replaced_at_the_same_address(cloud: CloudProcess) -> None:
    connection = attach(cloud, volume(cloud.client()))["connection_info"]

    async def scenario() -> None:
        with client(connection) as guest:
            assert "wrote" in await guest.do("write -P 1 0 512", "wrote")
            support.kill(cloud.data)
            assert "wrote" in await guest.do("write -P 2 512 512", "wrote")
            # Kill both: the next control plane restarts the daemon before it serves requests.
            cloud.kill()
            support.kill(cloud.data)
            await asyncio.to_thread(cloud.start)
            assert "read 512" in await io(connection, "read -P 2 512 512")
            assert "wrote" in await guest.do("write -P 3 1024 512", "wrote")

    run(scenario())


def test_no_export_directory_without_nbd_attachments(cloud: CloudProcess) -> None:
    volume(cloud.client())
    assert not (cloud.data / "exports").exists()


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_api_exports_and_worker_restarts_dead_daemon(tmp_path: Path, empty_url: str) -> None:
    support.require()
    data, database = tmp_path / "data", ("--database", empty_url)
    with (
        CloudProcess(data, *database, command=("worker",)),
        CloudProcess(data, *database, command=("api",)) as api,
    ):
        created = attach(api, volume(api.client()))

        async def scenario() -> None:
            with client(created["connection_info"]) as guest:
                assert "wrote" in await guest.do("write -P 1 0 512", "wrote")
                support.kill(data)
                assert "wrote" in await guest.do("write -P 2 512 512", "wrote")

        run(scenario())
        detach(api, created)
        assert "failed" in run(io(created["connection_info"], "read 0 512"))
    wait_until(lambda: not alive(api), "the daemon ends with the worker")
