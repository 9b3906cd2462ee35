"""The daemon and the processes of the control plane: either may die, and guests go on with their volumes."""

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
from tests.support.process import Client as Api
from tests.support.process import Cloud
from tests.support.virt_hosts import until
from tests.volume.exports import support
from tests.volume.exports.support import CONNECTOR, client, io


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    support.require()
    one = Cloud(tmp_path / "data", "--hosts", "1")
    try:
        with one:
            yield one
    finally:
        if alive(one):
            with contextlib.suppress(ProcessLookupError):  # it may be about to end
                os.kill(support.pid_of(one.data), signal.SIGKILL)


def alive(cloud: Cloud) -> bool:
    from kilonova.volume.exports.daemon import Daemon

    return Daemon(cloud.data / "exports", "127.0.0.1", 0).is_alive()


def volume(api: Api) -> str:
    made = api.post("volume", "/volumes", {"volume": {"size": 1}}).json()["volume"]
    path = f"/volumes/{made['id']}"
    until(lambda: api.get("volume", path).json()["volume"]["status"] == "available", "the volume is there")
    return str(made["id"])


def attach(cloud: Cloud, volume_id: str) -> dict[str, Any]:
    asked = {"volume_uuid": volume_id, "instance_uuid": new_id(), "connector": CONNECTOR}
    admin = cloud.client("kilonova", "3.54")
    answer = admin.post("volume", "/attachments", {"attachment": asked})
    assert answer.status == 200, answer.body
    made: dict[str, Any] = answer.json()["attachment"]
    return made


def give_back(cloud: Cloud, made: dict[str, Any]) -> None:
    answer = cloud.client("kilonova", "3.54").delete("volume", f"/attachments/{made['id']}")
    assert answer.status == 200, answer.body


def test_exports_outlive_the_control_plane_and_are_taken_over(cloud: Cloud) -> None:
    made = attach(cloud, volume(cloud.client()))
    way, pid = made["connection_info"], support.pid_of(cloud.data)
    assert os.getsid(pid) != os.getsid(cloud.pid)

    async def scenario() -> None:
        with client(way) as guest:
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
    give_back(cloud, made)
    assert "failed" in run(io(way, "read 0 512"))
    # With nothing to export it ends with the control plane.
    assert cloud.stop() == 0
    until(lambda: not alive(cloud), "the daemon ends")


def test_a_daemon_that_dies_is_replaced_at_the_same_address(cloud: Cloud) -> None:
    way = attach(cloud, volume(cloud.client()))["connection_info"]

    async def scenario() -> None:
        with client(way) as guest:
            assert "wrote" in await guest.do("write -P 1 0 512", "wrote")
            support.kill(cloud.data)
            assert "wrote" in await guest.do("write -P 2 512 512", "wrote")
            # Both at once: the next control plane has it run again before it answers.
            cloud.kill()
            support.kill(cloud.data)
            await asyncio.to_thread(cloud.start)
            assert "read 512" in await io(way, "read -P 2 512 512")
            assert "wrote" in await guest.do("write -P 3 1024 512", "wrote")

    run(scenario())


def test_nothing_of_it_is_made_where_nobody_wants_it(cloud: Cloud) -> None:
    volume(cloud.client())
    assert not (cloud.data / "exports").exists()


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_an_api_exports_and_a_worker_watches(tmp_path: Path, empty_url: str) -> None:
    support.require()
    data, database = tmp_path / "data", ("--database", empty_url)
    with (
        Cloud(data, *database, command=("worker",)),
        Cloud(data, *database, command=("api",)) as api,
    ):
        made = attach(api, volume(api.client()))

        async def scenario() -> None:
            with client(made["connection_info"]) as guest:
                assert "wrote" in await guest.do("write -P 1 0 512", "wrote")
                support.kill(data)
                assert "wrote" in await guest.do("write -P 2 512 512", "wrote")

        run(scenario())
        give_back(api, made)
        assert "failed" in run(io(made["connection_info"], "read 0 512"))
    until(lambda: not alive(api), "the daemon ends with the worker")
