"""Volumes over NBD: the real daemon exports what the database says, and clients of QEMU read and write it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import orjson
import pytest

from kilonova.ids import new_id
from kilonova.volume.exports import keeper as keeping
from kilonova.volume.exports.daemon import Daemon
from kilonova.volume.exports.keeper import Keeper
from kilonova.volume.files import GIB
from tests.support import run
from tests.volume.content.test_content import act, image, make, path_of, snapshot
from tests.volume.exports import support
from tests.volume.exports.support import CONNECTOR, Client, attach, client, exporting, io, url
from tests.volume.support import VolumeCloud


@pytest.fixture(autouse=True)
def tools() -> None:
    support.require()


async def give_back(c: VolumeCloud, made: dict[str, Any]) -> None:
    answer = await c.delete(f"/attachments/{made['id']}", as_="admin")
    assert answer.status == 200, answer.body


async def content_of(c: VolumeCloud, volume_id: str) -> bytes:
    """How it begins."""
    with (await path_of(c, volume_id)).open("rb") as file:
        return file.read(1 << 20)


def data_of(c: VolumeCloud) -> Path:
    return Path(c.services.config.data_dir)


def test_a_host_that_wants_nbd_gets_an_export_of_its_own(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, _):
            volume_id = await make(c)
            made = await attach(c, volume_id)
            way = made["connection_info"]
            assert way == {
                "driver_volume_type": "nbd",
                "host": "127.0.0.1",
                "port": way["port"],
                "export": way["export"],
                "format": "raw",
                "access_mode": "rw",
                "size": 1,
                "volume_id": volume_id,
                "attachment_id": made["id"],
                "encrypted": False,
                "qos_specs": None,
                "multiattach": False,
            }
            assert way["export"].startswith(made["id"])
            assert len(way["export"]) >= len(made["id"]) + 32
            assert "wrote 4096" in await io(way, "write -P 7 4k 4k", "flush")
            assert (await content_of(c, volume_id))[4096:8192] == b"\x07" * 4096
            guess = {**way, "export": made["id"]}
            assert "failed" in await io(guess, "read 0 512", read_only=True)

    run(scenario())


def test_a_host_that_shares_the_data_directory_gets_the_file(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, _):
            volume_id = await make(c)
            made = await attach(c, volume_id, connector={"host": "h1"})
            assert made["connection_info"]["driver_volume_type"] == "kilonova_file"
            assert not (data_of(c) / "exports").exists()

    run(scenario())


def test_whoever_may_not_see_the_attachment_does_not_learn_the_name(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, _):
            volume_id = await make(c)
            made = await attach(c, volume_id)
            secret = made["connection_info"]["export"].encode()
            for path in (
                f"/attachments/{made['id']}",
                "/attachments/detail",
                f"/volumes/{volume_id}",
                "/volumes/detail",
            ):
                answer = await c.get(path, as_="other")
                assert secret not in answer.body
            for path in ("/attachments", f"/volumes/{volume_id}", "/volumes/detail"):
                assert secret not in (await c.get(path)).body

    run(scenario())


def test_a_read_only_attachment_cannot_be_written_through(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, _):
            made = await attach(c, await make(c), connector={**CONNECTOR, "mode": "ro"})
            way = made["connection_info"]
            assert way["access_mode"] == "ro"
            assert "failed" in await io(way, "write -P 7 0 512")
            assert "read 512" in await io(way, "read -P 0 0 512", read_only=True)

    run(scenario())


def test_an_attachment_that_is_given_back_writes_no_more(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, keeper):
            volume_id, server_id = await make(c), new_id()
            source = await attach(c, volume_id, server_id)
            # The destination of a live migration.
            other = await attach(c, volume_id, server_id)
            assert source["connection_info"]["export"] != other["connection_info"]["export"]
            with client(source["connection_info"], seconds=0) as one, client(other["connection_info"]) as two:
                assert "wrote" in await one.do("write -P 1 0 512", "wrote")
                assert "wrote" in await two.do("write -P 2 512 512", "wrote")
                await give_back(c, source)
                assert "failed" in await one.do("write -P 3 1024 512", "wrote")
                assert "wrote" in await two.do("write -P 4 2048 512", "wrote")
            content = await content_of(c, volume_id)
            assert (content[0], content[512], content[1024], content[2048]) == (1, 2, 0, 4)
            await give_back(c, other)
            assert await exports_of(keeper) == ({}, set())

    run(scenario())


async def exports_of(keeper: Keeper) -> tuple[dict[str, str], set[str]]:
    async with keeper._daemon.session(start=False) as session:
        assert session is not None
        return await session.exports(), await session.nodes()


def test_a_daemon_that_dies_comes_back_where_clients_know_it(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url, watch=True) as (c, _):
            volumes = [await make(c), await make(c)]
            ways = [(await attach(c, volume_id))["connection_info"] for volume_id in volumes]
            with client(ways[0]) as one, client(ways[1]) as two:
                assert "wrote" in await one.do("write -P 1 0 512", "wrote")
                first = support.kill(data_of(c))
                # Asked for while nobody is there.
                assert "wrote" in await one.do("write -P 2 512 512", "wrote")
                assert "wrote" in await two.do("write -P 3 0 512", "wrote")
            assert support.pid_of(data_of(c)) != first
            assert (await content_of(c, volumes[0]))[512] == 2

    run(scenario())


def test_the_daemon_is_brought_in_line_with_the_database(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, keeper):
            kept, lost = await make(c), await make(c)
            ways = [(await attach(c, volume_id))["connection_info"] for volume_id in (kept, lost)]
            async with c.db.transaction() as tx:
                await tx.execute("DELETE FROM volume_attachments WHERE volume_id = $1", lost)
            async with keeper._daemon.session(start=False) as session:
                assert session is not None
                await session.remove_exports(set(await session.exports()))
            await keeper.sync_all()
            assert "read 512" in await io(ways[0], "read 0 512")
            assert "failed" in await io(ways[1], "read 0 512")
            exports, nodes = await exports_of(keeper)
            assert len(exports) == len(nodes) == 1
            async with c.db.transaction() as tx:
                await tx.execute("DELETE FROM volume_attachments")
            await keeper.sync_all()
            async with asyncio.timeout(support.SECONDS):
                while Daemon.of(c.services.config).is_alive():
                    await asyncio.sleep(0.01)

    run(scenario())


def test_a_volume_whose_content_is_missing_does_not_keep_others_from_being_exported(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, keeper):
            lost, kept = await make(c), await make(c)
            await attach(c, lost)
            way = (await attach(c, kept))["connection_info"]
            support.kill(data_of(c))
            for path in (data_of(c) / "volumes").glob(f"{lost}.*"):
                path.unlink()
            await keeper.sync_all()
            assert "read 512" in await io(way, "read 0 512")

    run(scenario())


def test_a_volume_grows_under_its_client(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, _):
            volume_id = await make(c)
            way = (await attach(c, volume_id))["connection_info"]
            with client(way) as one:
                assert "wrote" in await one.do("write -P 1 0 512", "wrote")
                await act(c, volume_id, "os-extend", new_size=2)
                assert "wrote" in await one.do("write -P 2 512 512", "wrote")
            assert await support.size_of(way) == 2 * GIB
            assert "wrote 512" in await io(way, f"write -P 3 {GIB + 512} 512")

    run(scenario())


def test_content_that_takes_the_place_of_other_is_what_the_next_host_gets(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, _):
            volume_id, server_id = await make(c), new_id()
            made = await attach(c, volume_id, server_id)
            assert "wrote" in await io(made["connection_info"], "write -P 1 0 4k")
            image_id = await image(c, b"\x05" * 8192)
            # As compute does it: reserved meanwhile, and connected to nobody.
            reserved = await attach_empty(c, volume_id, server_id)
            await give_back(c, made)
            await act(c, volume_id, "os-reimage", image_id=image_id, reimage_reserved=True)
            answer = await c.put(f"/attachments/{reserved}", {"attachment": {"connector": CONNECTOR}}, as_="admin")
            way = answer.json()["attachment"]["connection_info"]
            assert "read 8192" in await io(way, "read -P 5 0 8k")

    run(scenario())


async def attach_empty(c: VolumeCloud, volume_id: str, server_id: str) -> str:
    asked = {"volume_uuid": volume_id, "instance_uuid": server_id}
    answer = await c.post("/attachments", {"attachment": asked}, as_="admin")
    assert answer.status == 200, answer.body
    return str(answer.json()["attachment"]["id"])


@pytest.mark.parametrize("what", ["snapshot", "clone"])
def test_a_copy_of_a_volume_in_use_is_of_one_moment(
    database_url: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client goes on to write one number after the other, each at the beginning and then at the end."""
    size = 32 << 20
    monkeypatch.setattr(keeping, "_SPEED", 512 << 20)
    numbers: list[int] = []
    writers: list[asyncio.Task[None]] = []
    copied = Keeper._copied

    async def copied_late(self: Keeper, ident: str) -> int | None:
        """However slow the client is, the copy does not end before it has written something."""
        while len(numbers) <= 10 and not any(writing.done() for writing in writers):
            await asyncio.sleep(0.01)
        return await copied(self, ident)

    monkeypatch.setattr(Keeper, "_copied", copied_late)

    async def write(one: Client) -> None:
        for number in range(2, 250):
            for place in (0, size - 4096):
                assert "wrote" in await one.do(f"write -P {number} {place} 4k", "wrote")
            numbers.append(number)

    async def scenario() -> None:
        async with exporting(database_url) as (c, keeper):
            volume_id = await make(c)
            way = (await attach(c, volume_id))["connection_info"]
            assert "wrote" in await io(way, f"write -P 1 0 {size}")
            with client(way) as one:
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
            exports, nodes = await exports_of(keeper)
            assert len(exports) == len(nodes) == 1

    run(scenario())


async def snapshot_path(c: VolumeCloud, snapshot_id: str) -> Path:
    data_id = await c.db.fetch_value("SELECT data_id FROM volume_snapshots WHERE id = $1", snapshot_id)
    return data_of(c) / "volumes" / "snapshots" / f"{snapshot_id}.{data_id}"


def test_a_copy_goes_on_when_the_daemon_dies_in_the_middle(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with exporting(database_url, watch=True) as (c, _):
            volume_id = await make(c)
            way = (await attach(c, volume_id))["connection_info"]
            assert "wrote" in await io(way, "write -P 1 0 1M")
            begin, died = Keeper._begin_copy, asyncio.Event()

            async def and_die(self: Keeper, *args: Any) -> bool | None:
                found = await begin(self, *args)
                if found and not died.is_set():
                    support.kill(data_of(c))
                    died.set()
                return found

            monkeypatch.setattr(Keeper, "_begin_copy", and_die)
            path = await snapshot_path(c, await snapshot(c, volume_id))
            assert died.is_set()
            with path.open("rb") as file:
                assert file.read(1 << 20) == b"\x01" * (1 << 20)

    run(scenario())


def test_a_copy_that_was_abandoned_is_taken_over_and_keeps_others_waiting(database_url: str) -> None:
    """As by a process that was killed."""

    async def scenario() -> None:
        async with exporting(database_url) as (c, keeper):
            volume_id = await make(c)
            await attach(c, volume_id)
            data_id = await c.db.fetch_value("SELECT data_id FROM volumes WHERE id = $1", volume_id)
            target = data_of(c) / "target"
            target.touch()
            os.truncate(target, GIB)

            async def moved(done: int) -> None:
                pass

            ident = f"{keeping._jobs_of(volume_id)}{keeping._digest('one', 8)}"
            assert await keeper._begin_copy(ident, volume_id, data_id, target, GIB)
            with pytest.raises(keeping.Busy):
                async with keeper.suspended(volume_id):
                    pass
            other = asyncio.create_task(keeper.copy("two", volume_id, data_id, target, GIB, moved))
            await asyncio.sleep(0.5)
            assert not other.done()
            assert await keeper.copy("one", volume_id, data_id, target, GIB, moved)
            assert await asyncio.wait_for(other, support.SECONDS)
            assert await keeper._begin_copy(ident, volume_id, data_id, target, GIB)
            await keeper.stop_copy("one")
            async with keeper.suspended(volume_id):
                pass
            exports, nodes = await exports_of(keeper)
            assert len(exports) == len(nodes) == 1

    run(scenario())


def test_a_volume_in_use_becomes_an_image(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, keeper):
            volume_id = await make(c)
            way = (await attach(c, volume_id))["connection_info"]
            assert "wrote" in await io(way, "write -P 6 0 1M")
            body = await act(c, volume_id, "os-volume_upload_image", image_name="i", force=True, disk_format="qcow2")
            shown = await c.services.image.show(body["os-volume_upload_image"]["image_id"], "admin")
            assert shown is not None
            assert shown["status"] == "active"
            assert not list((data_of(c) / "volumes" / "parts").glob("*"))
            assert len((await exports_of(keeper))[1]) == 1

    run(scenario())


def test_where_nothing_can_be_exported_the_attachment_stays_reserved(
    database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, _):
            volume_id = await make(c)
            attachment_id = await attach_empty(c, volume_id, new_id())
            monkeypatch.setenv("PATH", str(tmp_path))
            asked = {"attachment": {"connector": CONNECTOR}}
            answer = await c.put(f"/attachments/{attachment_id}", asked, as_="admin")
            assert answer.status == 503
            shown = await c.item(f"/attachments/{attachment_id}")
            assert (shown["status"], shown["connection_info"]) == ("reserved", {})
            monkeypatch.undo()
            answer = await c.put(f"/attachments/{attachment_id}", asked, as_="admin")
            assert answer.status == 200
            assert "read 512" in await io(answer.json()["attachment"]["connection_info"], "read 0 512")

    run(scenario())


def test_the_old_way_to_connect_a_volume_exports_it_too(database_url: str) -> None:
    async def scenario() -> None:
        async with exporting(database_url) as (c, keeper):
            volume_id = await make(c)

            async def do(name: str, status: int = 202, **keys: Any) -> Any:
                answer = await c.post(f"/volumes/{volume_id}/action", {name: keys}, as_="admin")
                assert answer.status == status, answer.body
                return answer.json() if answer.body else None

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
            assert await exports_of(keeper) == ({}, set())

    run(scenario())


def test_the_data_directory_may_have_a_long_name(tmp_path: Path) -> None:
    """Longer than what names of sockets can be."""
    directory = tmp_path / ("d" * 100) / ("e" * 100)

    async def scenario() -> None:
        daemon = Daemon(directory, "127.0.0.1", 0)
        async with daemon.session(start=True) as session:
            assert session is not None
            assert await session.exports() == {}
        before = support.pid_of_directory(directory)
        async with Daemon(directory, "127.0.0.1", 0).session(start=True) as session:
            assert session is not None
        assert support.pid_of_directory(directory) == before
        assert os.getsid(before) != os.getsid(0)
        await support.end(daemon)

    run(scenario())


def test_many_processes_have_one_daemon(tmp_path: Path) -> None:
    async def scenario() -> None:
        daemons = [Daemon(tmp_path / "exports", "127.0.0.1", 0) for _ in range(8)]

        async def ask(daemon: Daemon) -> tuple[int, int]:
            port = daemon.address().port
            async with daemon.session(start=True) as session:
                assert session is not None
                await session.exports()
                return port, support.pid_of(tmp_path)

        try:
            assert len(set(await asyncio.gather(*map(ask, daemons)))) == 1
        finally:
            await support.end(daemons[0])

    run(scenario())


def test_a_dying_daemon_is_replaced(tmp_path: Path) -> None:
    """Whoever comes while it dies finds its lock held and its socket closing."""

    async def scenario() -> None:
        daemon = Daemon(tmp_path / "exports", "127.0.0.1", 0)
        try:
            for _ in range(30):
                async with daemon.session(start=True) as session:
                    assert session is not None
                    assert await session.exports() == {}
                os.kill(support.pid_of(tmp_path), signal.SIGKILL)
        finally:
            await support.end(daemon)

    run(scenario())


_EVENT = b'{"timestamp": {"seconds": 1, "microseconds": 0}, "event": "JOB_STATUS_CHANGE", "data": {}}'
_FAILED = b'{"id": "__qmp#00004", "error": {"class": "GenericError", "desc": "asked by one who has gone"}}'
_DONE = b'{"id": "__qmp#00000", "return": "asked by one who has gone"}'


@pytest.mark.parametrize("early", [b"", _EVENT, _FAILED, _DONE], ids=["nothing", "news", "error", "answer"])
@pytest.mark.parametrize("late", [b"", _EVENT, _FAILED, _DONE], ids=["nothing", "news", "error", "answer"])
def test_words_for_nobody_are_passed_over(tmp_path: Path, early: bytes, late: bytes) -> None:
    """The real daemon says such things once in a thousand times, before its greeting or its first answer; this one
    always does, and twice."""
    greeting = b'{"QMP": {"version": {}, "capabilities": ["oob"]}}'
    spoken = [(early, late)] * 2

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, then = spoken.pop(0) if spoken else (b"", b"")
        writer.write(b"".join(line + b"\r\n" for line in (first, greeting, then) if line))
        while said := await reader.read(4096):
            asked = orjson.loads(said)
            reply = {"id": asked["id"], "return": asked["execute"]} if "id" in asked else {"return": {}}
            writer.write(orjson.dumps(reply) + b"\r\n")
        writer.close()

    async def scenario() -> None:
        daemon = Daemon(tmp_path, "127.0.0.1", 0)
        async with await asyncio.start_unix_server(serve, tmp_path / "socket"):
            client = await daemon._connect()
            assert await client.execute("query-jobs") == "query-jobs"
            await client.disconnect()

    run(scenario())


def test_the_url_of_an_export_needs_no_quoting() -> None:
    from kilonova.volume.exports.keeper import new_name

    name = new_name(new_id())
    assert url({"host": "h", "port": 1, "export": name}).isascii()
    assert not set("%?#,= ") & set(name)
