"""NBD exports of the real daemon, read and written by QEMU's clients."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from kilonova.ids import new_id
from kilonova.volume.exports import manager as manager_module
from kilonova.volume.exports.daemon import Daemon
from kilonova.volume.exports.manager import ExportManager
from kilonova.volume.files import GIB
from tests.support import run
from tests.volume.exports import support
from tests.volume.exports.support import CONNECTOR, Client, attach, client, exporting, io, url
from tests.volume.operations.test_content import act, image, make, path_of, snapshot
from tests.volume.support import VolumeCloud


@pytest.fixture(autouse=True)
def tools() -> None:
    support.require()


async def detach(c: VolumeCloud, created: dict[str, Any]) -> None:
    response = await c.delete(f"/attachments/{created['id']}", as_="admin")
    assert response.status == 200, response.body


async def content_of(c: VolumeCloud, volume_id: str) -> bytes:
    """The first MiB."""
    with (await path_of(c, volume_id)).open("rb") as file:
        return file.read(1 << 20)


def data_of(c: VolumeCloud) -> Path:
    return Path(c.services.config.data_dir)


def test_nbd_attachment_has_its_own_export(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, _):
            volume_id = await make(c)
            created = await attach(c, volume_id)
            connection = created["connection_info"]
            assert connection == {
                "driver_volume_type": "nbd",
                "host": "127.0.0.1",
                "port": connection["port"],
                "export": connection["export"],
                "format": "raw",
                "access_mode": "rw",
                "size": 1,
                "volume_id": volume_id,
                "attachment_id": created["id"],
                "encrypted": False,
                "qos_specs": None,
                "multiattach": False,
            }
            assert connection["export"].startswith(created["id"])
            assert len(connection["export"]) >= len(created["id"]) + 32
            assert "wrote 4096" in await io(connection, "write -P 7 4k 4k", "flush")
            assert (await content_of(c, volume_id))[4096:8192] == b"\x07" * 4096
            guess = {**connection, "export": created["id"]}
            assert "failed" in await io(guess, "read 0 512", read_only=True)

    run(scenario())


def test_attachment_without_nbd_gets_file_path(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, _):
            volume_id = await make(c)
            created = await attach(c, volume_id, connector={"host": "h1"})
            assert created["connection_info"]["driver_volume_type"] == "kilonova_file"
            assert not (data_of(c) / "exports").exists()

    run(scenario())


def test_export_name_is_only_shown_to_those_who_see_the_attachment(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, _):
            volume_id = await make(c)
            created = await attach(c, volume_id)
            secret = created["connection_info"]["export"].encode()
            for path in (
                f"/attachments/{created['id']}",
                "/attachments/detail",
                f"/volumes/{volume_id}",
                "/volumes/detail",
            ):
                response = await c.get(path, as_="other")
                assert secret not in response.body
            for path in ("/attachments", f"/volumes/{volume_id}", "/volumes/detail"):
                assert secret not in (await c.get(path)).body

    run(scenario())


def test_read_only_attachment_refuses_writes(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, _):
            created = await attach(c, await make(c), connector={**CONNECTOR, "mode": "ro"})
            connection = created["connection_info"]
            assert connection["access_mode"] == "ro"
            assert "failed" in await io(connection, "write -P 7 0 512")
            assert "read 512" in await io(connection, "read -P 0 0 512", read_only=True)

    run(scenario())


def test_deleted_attachment_cannot_write(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, manager):
            volume_id, server_id = await make(c), new_id()
            source = await attach(c, volume_id, server_id)
            # The destination of a live migration.
            other = await attach(c, volume_id, server_id)
            assert source["connection_info"]["export"] != other["connection_info"]["export"]
            with client(source["connection_info"], seconds=0) as one, client(other["connection_info"]) as two:
                assert "wrote" in await one.do("write -P 1 0 512", "wrote")
                assert "wrote" in await two.do("write -P 2 512 512", "wrote")
                await detach(c, source)
                assert "failed" in await one.do("write -P 3 1024 512", "wrote")
                assert "wrote" in await two.do("write -P 4 2048 512", "wrote")
            content = await content_of(c, volume_id)
            assert (content[0], content[512], content[1024], content[2048]) == (1, 2, 0, 4)
            await detach(c, other)
            assert await exports_of(manager) == ({}, set())

    run(scenario())


async def exports_of(manager: ExportManager) -> tuple[dict[str, str], set[str]]:
    async with manager._daemon.session(start=False) as session:
        assert session is not None
        return await session.exports(), await session.nodes()


def test_watch_restarts_dead_daemon_at_same_address(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url, watch=True) as (c, _):
            volumes = [await make(c), await make(c)]
            connections = [(await attach(c, volume_id))["connection_info"] for volume_id in volumes]
            with client(connections[0]) as one, client(connections[1]) as two:
                assert "wrote" in await one.do("write -P 1 0 512", "wrote")
                first = support.kill(data_of(c))
                # Written while no daemon runs.
                assert "wrote" in await one.do("write -P 2 512 512", "wrote")
                assert "wrote" in await two.do("write -P 3 0 512", "wrote")
            assert support.pid_of(data_of(c)) != first
            assert (await content_of(c, volumes[0]))[512] == 2

    run(scenario())


def test_sync_all_matches_exports_to_database(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, manager):
            kept, lost = await make(c), await make(c)
            connections = [(await attach(c, volume_id))["connection_info"] for volume_id in (kept, lost)]
            async with c.db.transaction() as tx:
                await tx.execute("DELETE FROM volume_attachments WHERE volume_id = $1", lost)
            async with manager._daemon.session(start=False) as session:
                assert session is not None
                await session.remove_exports(set(await session.exports()))
            await manager.sync_all()
            assert "read 512" in await io(connections[0], "read 0 512")
            assert "failed" in await io(connections[1], "read 0 512")
            exports, nodes = await exports_of(manager)
            assert len(exports) == len(nodes) == 1
            async with c.db.transaction() as tx:
                await tx.execute("DELETE FROM volume_attachments")
            await manager.sync_all()
            async with asyncio.timeout(support.SECONDS):
                while Daemon.of(c.services.config).is_alive():
                    await asyncio.sleep(0.01)

    run(scenario())


def test_missing_content_does_not_prevent_other_exports(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, manager):
            lost, kept = await make(c), await make(c)
            await attach(c, lost)
            connection = (await attach(c, kept))["connection_info"]
            support.kill(data_of(c))
            for path in (data_of(c) / "volumes").glob(f"{lost}.*"):
                path.unlink()
            await manager.sync_all()
            assert "read 512" in await io(connection, "read 0 512")

    run(scenario())


def test_extend_exported_volume(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, _):
            volume_id = await make(c)
            connection = (await attach(c, volume_id))["connection_info"]
            with client(connection) as one:
                assert "wrote" in await one.do("write -P 1 0 512", "wrote")
                await act(c, volume_id, "os-extend", new_size=2)
                assert "wrote" in await one.do("write -P 2 512 512", "wrote")
            assert await support.size_of(connection) == 2 * GIB
            assert "wrote 512" in await io(connection, f"write -P 3 {GIB + 512} 512")

    run(scenario())


def test_reimaged_content_is_exported(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, _):
            volume_id, server_id = await make(c), new_id()
            created = await attach(c, volume_id, server_id)
            assert "wrote" in await io(created["connection_info"], "write -P 1 0 4k")
            image_id = await image(c, b"\x05" * 8192)
            # Like compute: the volume is reserved meanwhile, without a connection.
            reserved = await attach_empty(c, volume_id, server_id)
            await detach(c, created)
            await act(c, volume_id, "os-reimage", image_id=image_id, reimage_reserved=True)
            response = await c.put(f"/attachments/{reserved}", {"attachment": {"connector": CONNECTOR}}, as_="admin")
            connection = response.json()["attachment"]["connection_info"]
            assert "read 8192" in await io(connection, "read -P 5 0 8k")

    run(scenario())


async def attach_empty(c: VolumeCloud, volume_id: str, server_id: str) -> str:
    requested = {"volume_uuid": volume_id, "instance_uuid": server_id}
    response = await c.post("/attachments", {"attachment": requested}, as_="admin")
    assert response.status == 200, response.body
    return str(response.json()["attachment"]["id"])


@pytest.mark.parametrize("what", ["snapshot", "clone"])
def test_copy_of_volume_in_use_is_consistent(database_url: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client writes increasing numbers, each at the beginning and then at the end."""
    size = 32 << 20
    monkeypatch.setattr(manager_module, "_COPY_SPEED", 512 << 20)
    numbers: list[int] = []
    writers: list[asyncio.Task[None]] = []
    copied = ExportManager._copied

    async def delayed(self: ExportManager, ident: str) -> int | None:
        """Let the copy end only after the client has written something."""
        while len(numbers) <= 10 and not any(writing.done() for writing in writers):
            await asyncio.sleep(0.01)
        return await copied(self, ident)

    monkeypatch.setattr(ExportManager, "_copied", delayed)

    async def write(one: Client) -> None:
        for number in range(2, 250):
            for offset in (0, size - 4096):
                assert "wrote" in await one.do(f"write -P {number} {offset} 4k", "wrote")
            numbers.append(number)

    async def scenario() -> None:
        async with exporting(database_url) as (c, manager):
            volume_id = await make(c)
            connection = (await attach(c, volume_id))["connection_info"]
            assert "wrote" in await io(connection, f"write -P 1 0 {size}")
            with client(connection) as one:
                writing = asyncio.create_task(write(one))
                writers.append(writing)
                if what == "snapshot":
                    path = await snapshot_path(c, await snapshot(c, volume_id))
                else:
                    path = await path_of(c, await make(c, source_volid=volume_id, size=2))
                writing.cancel()
                await asyncio.wait([writing])
            assert len(numbers) > 10
            with path.open("rb") as file:
                first, between = file.read(4096), file.read(1 << 20)
                file.seek(size - 4096)
                last, after = file.read(4096), file.read(1 << 20)
            assert first[0] - last[0] in (0, 1)
            assert 1 < last[0] <= numbers[-1] + 1
            assert set(first) == {first[0]}
            assert (set(between), set(after)) == ({1}, {0})
            assert path.stat().st_blocks * 512 < 2 * size
            exports, nodes = await exports_of(manager)
            assert len(exports) == len(nodes) == 1

    run(scenario())


async def snapshot_path(c: VolumeCloud, snapshot_id: str) -> Path:
    data_id = await c.db.fetch_value("SELECT data_id FROM volume_snapshots WHERE id = $1", snapshot_id)
    return data_of(c) / "volumes" / "snapshots" / f"{snapshot_id}.{data_id}"


def test_copy_is_retried_when_daemon_dies(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with exporting(database_url, watch=True) as (c, _):
            volume_id = await make(c)
            connection = (await attach(c, volume_id))["connection_info"]
            assert "wrote" in await io(connection, "write -P 1 0 1M")
            begin, died = ExportManager._begin_copy, asyncio.Event()

            async def begin_and_kill(self: ExportManager, *args: Any) -> bool | None:
                found = await begin(self, *args)
                if found and not died.is_set():
                    support.kill(data_of(c))
                    died.set()
                return found

            monkeypatch.setattr(ExportManager, "_begin_copy", begin_and_kill)
            path = await snapshot_path(c, await snapshot(c, volume_id))
            assert died.is_set()
            with path.open("rb") as file:
                assert file.read(1 << 20) == b"\x01" * (1 << 20)

    run(scenario())


def test_abandoned_copy_is_restarted_and_blocks_others(database_url: str) -> None:
    """A copy of a killed process."""

    async def scenario() -> None:
        async with exporting(database_url) as (c, manager):
            volume_id = await make(c)
            await attach(c, volume_id)
            data_id = await c.db.fetch_value("SELECT data_id FROM volumes WHERE id = $1", volume_id)
            target = data_of(c) / "target"
            target.touch()
            os.truncate(target, GIB)

            async def on_progress(done: int) -> None:
                pass

            ident = f"{manager_module._job_prefix(volume_id)}{manager_module._digest('one', 8)}"
            assert await manager._begin_copy(ident, volume_id, data_id, target, GIB)
            with pytest.raises(manager_module.Busy):
                async with manager.suspended(volume_id):
                    pass
            other = asyncio.create_task(manager.copy("two", volume_id, data_id, target, GIB, on_progress))
            await asyncio.sleep(0.5)
            assert not other.done()
            assert await manager.copy("one", volume_id, data_id, target, GIB, on_progress)
            assert await asyncio.wait_for(other, support.SECONDS)
            assert await manager._begin_copy(ident, volume_id, data_id, target, GIB)
            await manager.stop_copy("one")
            async with manager.suspended(volume_id):
                pass
            exports, nodes = await exports_of(manager)
            assert len(exports) == len(nodes) == 1

    run(scenario())


def test_upload_of_volume_in_use(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, manager):
            volume_id = await make(c)
            connection = (await attach(c, volume_id))["connection_info"]
            assert "wrote" in await io(connection, "write -P 6 0 1M")
            body = await act(c, volume_id, "os-volume_upload_image", image_name="i", force=True, disk_format="qcow2")
            shown = await c.services.image.show(body["os-volume_upload_image"]["image_id"], "admin")
            assert shown is not None
            assert shown.status == "active"
            assert not list((data_of(c) / "volumes" / "parts").glob("*"))
            assert len((await exports_of(manager))[1]) == 1

    run(scenario())


def test_failed_export_leaves_attachment_reserved(
    database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, _):
            volume_id = await make(c)
            attachment_id = await attach_empty(c, volume_id, new_id())
            monkeypatch.setenv("PATH", str(tmp_path))
            requested = {"attachment": {"connector": CONNECTOR}}
            response = await c.put(f"/attachments/{attachment_id}", requested, as_="admin")
            assert response.status == 503
            shown = await c.item(f"/attachments/{attachment_id}")
            assert (shown["status"], shown["connection_info"]) == ("reserved", {})
            monkeypatch.undo()
            response = await c.put(f"/attachments/{attachment_id}", requested, as_="admin")
            assert response.status == 200
            assert "read 512" in await io(response.json()["attachment"]["connection_info"], "read 0 512")

    run(scenario())


def test_initialize_connection_exports_volume(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, manager):
            volume_id = await make(c)

            async def do(name: str, status: int = 202, **keys: Any) -> Any:
                response = await c.post(f"/volumes/{volume_id}/action", {name: keys}, as_="admin")
                assert response.status == status, response.body
                return response.json() if response.body else None

            await do("os-reserve")
            info = (await do("os-initialize_connection", 200, connector=CONNECTOR))["connection_info"]
            again = (await do("os-initialize_connection", 200, connector=CONNECTOR))["connection_info"]
            assert info == again
            assert info["driver_volume_type"] == "nbd"
            assert "wrote" in await io(info["data"], "write -P 1 0 512")
            await do("os-attach", instance_uuid=new_id(), mountpoint="/dev/vdb", mode="rw")
            assert (await c.item(f"/volumes/{volume_id}"))["status"] == "in-use"
            assert "read 512" in await io(info["data"], "read -P 1 0 512")
            await do("os-terminate_connection", connector=CONNECTOR)
            assert "failed" in await io(info["data"], "read 0 512")
            await do("os-detach")
            assert (await c.item(f"/volumes/{volume_id}"))["status"] == "available"
            assert await exports_of(manager) == ({}, set())

    run(scenario())


def test_export_name_needs_no_quoting_in_url() -> None:
    from kilonova.volume.exports.manager import new_name

    name = new_name(new_id())
    assert url({"host": "h", "port": 1, "export": name}).isascii()
    assert not set("%?#,= ") & set(name)
