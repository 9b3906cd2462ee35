"""Moves of simulated guests: slots, disks, snapshots and live migrations, repeated and interrupted."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec
import orjson
import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.shapes import Shape, Shapes, Sharing
from kilonova.hosts.drivers.sim.store import SimStore
from kilonova.hosts.embedded import EmbeddedConfig, EmbeddedHosts
from kilonova.hosts.messages import Command, Flavor, Guest, GuestState, Image, MigrationState, Transfer
from kilonova.hosts.messages.verbs import (
    Change,
    Destroy,
    Discard,
    ForceCompleteMigration,
    GetMigration,
    MigrateLive,
    Park,
    PowerOff,
    PrepareMigration,
    Receive,
    Snapshot,
    Spawn,
    StopMigration,
    Unpark,
)
from kilonova.hosts.transport import HostRefused, list_guests
from tests.hosts.support import command, guest
from tests.support import run

A, B, C = "sim-001", "sim-002", "sim-003"
G = "guest-1"
GUEST = guest(G)
BIGGER = guest(G, flavor=Flavor(name="m1.small", vcpus=2, ram_mb=1024, disk_gb=2))
SNAPSHOT = Image(id="image-2", properties={"image_type": "snapshot"})
DATA = Transfer(url="/v2/images/image-2/file", ticket="secret")

# The first two hosts share storage.
SHARED = Shapes(
    shape=[Shape(name="all", inventory={"VCPU": 8, "MEMORY_MB": 8192})],
    sharing=[Sharing(name="pool", hosts=[A, B], inventory={"DISK_GB": 1000})],
)


class FakeImages:
    """Images in memory."""

    def __init__(self) -> None:
        self.written: dict[str, bytes] = {}

    async def write(self, transfer: Transfer, data: bytes | AsyncIterator[bytes]) -> None:
        assert isinstance(data, bytes)
        self.written.setdefault(transfer.url, data)

    async def read(self, transfer: Transfer) -> AsyncIterator[bytes]:
        if transfer.url not in self.written:
            raise DriverError("the image service answered 404")
        for byte in self.written[transfer.url]:
            yield bytes([byte])


class Scene:
    def __init__(self, directory: Path, shapes: Shapes = SHARED) -> None:
        self.images = FakeImages()
        self.hosts = EmbeddedHosts(EmbeddedConfig(directory=directory, hosts=3, shapes=shapes), self.images)
        self.rules = Rules(SimStore(directory / "sim.db"))
        self._steps = itertools.count()

    async def send(self, host: str, verb: Change) -> Any:
        """Send the verb as a new command, so that the journal does not answer it."""
        return await self.hosts.call(host, command(verb, host=host, step=f"step {next(self._steps)}"))

    async def twice(self, host: str, verb: Change) -> Any:
        """Send the verb twice to the driver, as if the process had died before it wrote the journal."""
        first = await self.send(host, verb)
        assert await self.send(host, verb) == first
        return first

    async def refused(self, host: str, verb: Change) -> str:
        before = await self.all_guests()
        with pytest.raises(HostRefused) as failed:
            await self.send(host, verb)
        assert await self.all_guests() == before
        assert not failed.value.passing
        return failed.value.kind

    async def progress(self, host: str) -> MigrationState | None:
        found: MigrationState | None = await self.hosts.call(host, Command(host=host, verb=GetMigration(guest_id=G)))
        return found

    async def all_guests(self) -> list[tuple[str, GuestState]]:
        return [(host, state) for host in self.hosts.names for state in await list_guests(self.hosts, host)]

    async def places(self) -> list[tuple[str, str, str]]:
        """Host, slot and power of all guests."""
        return [(host, state.slot, state.power) for host, state in await self.all_guests()]

    async def disk(self) -> str:
        """The only disk of all guests."""
        (found,) = {state.disk for _, state in await self.all_guests()}
        assert found
        return found


Play = Callable[[Callable[[Scene], Awaitable[None]]], None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    def call(scenario: Callable[[Scene], Awaitable[None]]) -> None:
        async def main() -> None:
            scene = Scene(tmp_path)
            await scenario(scene)
            scene.hosts.close()

        run(main())

    return call


class TestPark:
    def test_park_and_unpark_restore_guest(self, play: Play) -> None:
        async def scenario(scene: Scene) -> None:
            built = await scene.send(A, Spawn(guest=GUEST))
            parked = await scene.twice(A, Park(guest_id=G, slot="op"))
            assert parked == msgspec.structs.replace(built, power="shutdown", slot="op")
            assert await scene.places() == [(A, "op", "shutdown")]
            back = await scene.twice(A, Unpark(guest_id=G, slot="op", start=True))
            assert back == msgspec.structs.replace(built, boots=2)
            assert await scene.places() == [(A, "", "running")]

        play(scenario)

    def test_unpark_without_start(self, play: Play) -> None:
        async def scenario(scene: Scene) -> None:
            await scene.send(A, Spawn(guest=GUEST))
            await scene.send(A, Park(guest_id=G, slot="op"))
            assert (await scene.twice(A, Unpark(guest_id=G, slot="op", start=False))).power == "shutdown"
            await scene.send(A, Unpark(guest_id=G, slot="op", start=True))
            assert (await scene.send(A, Unpark(guest_id=G, slot="op", start=False))).power == "shutdown"

        play(scenario)

    def test_missing_guest_or_slot_is_refused(self, play: Play) -> None:
        async def scenario(scene: Scene) -> None:
            assert await scene.refused(A, Park(guest_id=G, slot="op")) == "missing guest"
            assert await scene.refused(A, Unpark(guest_id=G, slot="op", start=True)) == "no such slot"
            await scene.send(A, Spawn(guest=GUEST))
            await scene.send(A, Park(guest_id=G, slot="op"))
            assert await scene.refused(A, Unpark(guest_id=G, slot="other", start=True)) == "no such slot"
            assert await scene.refused(A, PowerOff(guest_id=G)) == "missing guest"

        play(scenario)

    def test_unpark_replaces_guest_beside_slot(self, play: Play) -> None:
        """A resize on the same host is undone before the new guest was removed."""

        async def scenario(scene: Scene) -> None:
            await scene.send(A, Spawn(guest=GUEST))
            await scene.send(A, Park(guest_id=G, slot="op"))
            await scene.send(A, Receive(guest=BIGGER, source=A, slot="op", start=True))
            assert await scene.send(A, Park(guest_id=G, slot="op")) == await scene.send(A, Park(guest_id=G, slot="op"))
            assert (await scene.twice(A, Unpark(guest_id=G, slot="op", start=True))).vcpus == 1
            assert await scene.places() == [(A, "", "running")]

        play(scenario)

    def test_discard_removes_slot_and_destroy_removes_guest(self, play: Play) -> None:
        async def scenario(scene: Scene) -> None:
            await scene.send(A, Spawn(guest=GUEST))
            await scene.send(A, Park(guest_id=G, slot="op"))
            await scene.send(A, Receive(guest=BIGGER, source=A, slot="op", start=True))
            await scene.send(A, Discard(guest_id=G, slot="other"))
            assert len(await scene.places()) == 2
            await scene.twice(A, Discard(guest_id=G, slot="op"))
            assert await scene.places() == [(A, "", "running")]
            await scene.send(A, Park(guest_id=G, slot="op-2"))
            await scene.send(A, Destroy(guest_id=G))
            assert await scene.places() == [(A, "op-2", "shutdown")]

        play(scenario)


class TestReceive:
    @pytest.mark.parametrize("destination", [B, C, A], ids=["shared storage", "other storage", "same host"])
    @pytest.mark.parametrize("start", [True, False])
    def test_receive_keeps_disk(self, play: Play, destination: str, start: bool) -> None:
        async def scenario(scene: Scene) -> None:
            built = await scene.send(A, Spawn(guest=GUEST))
            await scene.send(A, Park(guest_id=G, slot="op"))
            verb = Receive(guest=BIGGER, source=A, slot="op", start=start)
            received = await scene.twice(destination, verb)
            assert (received.vcpus, received.disk_gb, received.disk) == (2, 2, built.disk)
            assert (received.power, received.boots) == (("running", 1) if start else ("shutdown", 0))
            await scene.send(A, Discard(guest_id=G, slot="op"))
            assert await scene.send(destination, verb) == received, "the slot is no longer needed"

        play(scenario)

    def test_impossible_receive_is_refused(self, play: Play) -> None:
        async def scenario(scene: Scene) -> None:
            receive = Receive(guest=BIGGER, source=A, slot="op", start=True)
            await scene.send(A, Spawn(guest=GUEST))
            assert await scene.refused(B, receive) == "no such slot"
            await scene.send(A, Park(guest_id=G, slot="op"))
            scene.rules.add_failure(A, "*", "unreachable", None, None)
            with pytest.raises(HostRefused, match=f"{A} cannot be reached from {B}"):
                await scene.send(B, receive)
            scene.rules.clear()
            await scene.send(B, receive)
            other = Receive(guest=GUEST, source=A, slot="op", start=True)
            assert await scene.refused(B, other) == "guest differs"

        play(scenario)


class TestDisks:
    def test_new_guest_gets_new_disk(self, play: Play) -> None:
        async def scenario(scene: Scene) -> None:
            first = await scene.send(A, Spawn(guest=GUEST))
            assert (await scene.send(A, Spawn(guest=GUEST))).disk == first.disk
            await scene.send(A, Destroy(guest_id=G))
            assert (await scene.send(A, Spawn(guest=GUEST, data=DATA))).disk not in ("", first.disk)

        play(scenario)

    @pytest.mark.parametrize("host, same", [(B, True), (C, False)])
    def test_evacuated_guest_keeps_disk_on_shared_storage(self, play: Play, host: str, same: bool) -> None:
        async def scenario(scene: Scene) -> None:
            lost = await scene.send(A, Spawn(guest=GUEST))
            scene.rules.add_failure(A, "*", "unreachable", None, None)
            rebuilt = await scene.twice(host, Spawn(guest=GUEST, disk_of=A, start=False))
            assert (rebuilt.power, rebuilt.boots) == ("shutdown", 0)
            assert (rebuilt.disk == lost.disk) is same

        play(scenario)

    def test_guest_from_snapshot_keeps_disk(self, play: Play) -> None:
        async def scenario(scene: Scene) -> None:
            built = await scene.send(A, Spawn(guest=GUEST))
            await scene.twice(A, Snapshot(guest_id=G, data=DATA))
            await scene.send(A, Destroy(guest_id=G))
            again = await scene.send(C, Spawn(guest=guest(G, image=SNAPSHOT), data=DATA))
            assert again.disk == built.disk
            assert await scene.refused(A, Snapshot(guest_id=G, data=DATA)) == "missing guest"

        play(scenario)

    @pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff\xd8", b"x" * 10_000, orjson.dumps({"guest": "g"})])
    def test_other_snapshot_image_gives_new_disk(self, play: Play, content: bytes) -> None:
        async def scenario(scene: Scene) -> None:
            scene.images.written[DATA.url] = content
            assert (await scene.send(C, Spawn(guest=guest(G, image=SNAPSHOT), data=DATA))).disk

        play(scenario)

    def test_unreadable_snapshot_builds_no_guest(self, play: Play) -> None:
        async def scenario(scene: Scene) -> None:
            assert await scene.refused(C, Spawn(guest=guest(G, image=SNAPSHOT), data=DATA)) == "driver"

        play(scenario)

    def test_snapshot_without_image_service_is_refused(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            hosts = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=1))
            await hosts.call(A, command(Spawn(guest=GUEST)))
            for verb in (Snapshot(guest_id=G, data=DATA), Spawn(guest=guest("g", image=SNAPSHOT), data=DATA)):
                with pytest.raises(HostRefused, match="has no image service"):
                    await hosts.call(A, command(verb, operation="op-2"))

        run(scenario())


class TestMigrateLive:
    @pytest.mark.parametrize("destination, block", [(B, None), (B, False), (C, None), (C, True)])
    def test_migrated_guest_runs_only_at_destination(self, play: Play, destination: str, block: bool | None) -> None:
        async def scenario(scene: Scene) -> None:
            built = await scene.send(A, Spawn(guest=GUEST))
            await scene.twice(destination, PrepareMigration(guest=GUEST, source=A, slot="op", block=block))
            assert await scene.places() == sorted([(A, "", "running"), (destination, "op", "shutdown")])
            await scene.twice(A, MigrateLive(guest_id=G, destination=destination, slot="op", block=block))
            assert await scene.all_guests() == [(destination, built)]
            await scene.send(destination, PrepareMigration(guest=GUEST, source=A, slot="op", block=block))
            assert await scene.all_guests() == [(destination, built)], "the guest has arrived"

        play(scenario)

    @pytest.mark.parametrize("destination, block", [(B, True), (C, False)])
    def test_block_migration_must_match_storage(self, play: Play, destination: str, block: bool) -> None:
        async def scenario(scene: Scene) -> None:
            await scene.send(A, Spawn(guest=GUEST))
            with pytest.raises(HostRefused, match="storage") as failed:
                await scene.send(destination, PrepareMigration(guest=GUEST, source=A, slot="op", block=block))
            assert (failed.value.kind, failed.value.public) == ("driver", "refused by the hypervisor")
            assert await scene.places() == [(A, "", "running")]
            await scene.send(destination, PrepareMigration(guest=GUEST, source=A, slot="op"))
            migrate = MigrateLive(guest_id=G, destination=destination, slot="op", block=block)
            assert await scene.refused(A, migrate) == "driver"

        play(scenario)

    def test_impossible_migration_is_refused(self, play: Play) -> None:
        async def scenario(scene: Scene) -> None:
            migrate = MigrateLive(guest_id=G, destination=B, slot="op")
            assert await scene.refused(A, migrate) == "missing guest"
            await scene.send(A, Spawn(guest=GUEST))
            assert await scene.refused(A, migrate) == "no such slot"
            await scene.send(B, Spawn(guest=GUEST))
            assert await scene.refused(B, PrepareMigration(guest=GUEST, source=A, slot="op")) == "guest differs"
            await scene.send(B, Destroy(guest_id=G))
            await scene.send(B, PrepareMigration(guest=GUEST, source=A, slot="op"))
            await scene.send(B, Spawn(guest=GUEST))
            assert await scene.refused(A, migrate) == "guest differs"
            await scene.send(B, Destroy(guest_id=G))
            await scene.send(A, PowerOff(guest_id=G))
            assert await scene.refused(A, migrate) == "driver"

        play(scenario)

    async def start_migration(self, scene: Scene, destination: str = B, seconds: float = 300.0) -> asyncio.Task[Any]:
        """Start a slow migration."""
        scene.rules.set_latency("*", "migrate_live", seconds)
        await scene.send(A, Spawn(guest=GUEST))
        await scene.send(destination, PrepareMigration(guest=GUEST, source=A, slot="op"))
        task = asyncio.create_task(scene.send(A, MigrateLive(guest_id=G, destination=destination, slot="op")))
        async with asyncio.timeout(60):
            while await scene.progress(A) is None and not task.done():
                await asyncio.sleep(0)
        return task

    @pytest.mark.parametrize("destination, disk", [(B, 0), (C, 2**30)])
    def test_migration_progress_increases(self, play: Play, destination: str, disk: int) -> None:
        async def scenario(scene: Scene) -> None:
            task = await self.start_migration(scene, destination, 60.0)
            percents: list[float] = []
            while len(set(percents)) < 3:
                await asyncio.sleep(0.02)
                state = await scene.progress(A)
                assert (state.memory_total, state.disk_total) == (512 * 2**20, disk)
                percents.append(state.percent)
            assert percents == sorted(percents)
            assert 0 <= percents[0] < percents[-1] <= 100
            await scene.send(A, ForceCompleteMigration(guest_id=G))
            await task
            assert await scene.progress(A) is None

        play(scenario)

    def test_hurry_migration_completes_migration(self, play: Play) -> None:
        async def scenario(scene: Scene) -> None:
            task = await self.start_migration(scene)
            await scene.send(A, ForceCompleteMigration(guest_id=G))
            async with asyncio.timeout(60):
                await task
            assert await scene.places() == [(B, "", "running")]
            await scene.send(A, ForceCompleteMigration(guest_id=G))

        play(scenario)

    def test_stopped_migration_leaves_guest_at_source(self, play: Play) -> None:
        async def scenario(scene: Scene) -> None:
            task = await self.start_migration(scene)
            before = await scene.all_guests()
            await scene.twice(A, StopMigration(guest_id=G))
            with pytest.raises(HostRefused, match="the migration was stopped") as failed:
                await task
            assert failed.value.kind == "interrupted"
            assert await scene.progress(A) is None
            assert await scene.all_guests() == before
            scene.rules.clear()
            await scene.send(A, MigrateLive(guest_id=G, destination=B, slot="op"))
            await scene.twice(A, StopMigration(guest_id=G))
            assert await scene.places() == [(B, "", "running")], "too late, but no error"

        play(scenario)

    def test_unreachable_destination_fails_migration(self, play: Play) -> None:
        async def scenario(scene: Scene) -> None:
            task = await self.start_migration(scene)
            scene.rules.add_failure(B, "*", "unreachable", None, None)
            with pytest.raises(HostRefused, match=f"{B} cannot be reached from {A}"):
                await task
            scene.rules.clear()
            assert await scene.places() == [(A, "", "running"), (B, "op", "shutdown")]

        play(scenario)

    def test_discarded_slot_fails_migration(self, play: Play) -> None:
        async def scenario(scene: Scene) -> None:
            task = await self.start_migration(scene)
            await scene.send(B, Discard(guest_id=G, slot="op"))
            await scene.send(A, ForceCompleteMigration(guest_id=G))
            with pytest.raises(HostRefused) as failed:
                await task
            assert failed.value.kind == "no such slot"
            assert await scene.places() == [(A, "", "running")]

        play(scenario)

    def test_migration_failing_at_end_leaves_guest_at_source(self, play: Play) -> None:
        async def scenario(scene: Scene) -> None:
            scene.rules.add_failure(A, "migrate_live", "error", 1, "too busy")
            task = await self.start_migration(scene, seconds=0.1)
            with pytest.raises(HostRefused, match="too busy"):
                await task
            assert await scene.places() == [(A, "", "running"), (B, "op", "shutdown")]
            scene.rules.clear()
            await scene.send(A, MigrateLive(guest_id=G, destination=B, slot="op"))
            assert await scene.places() == [(B, "", "running")]

        play(scenario)


@pytest.mark.parametrize("step", ["park", "unpark", "discard", "receive", "expect", "snapshot"])
def test_every_move_step_obeys_failure_rule(play: Play, step: str) -> None:
    verbs: dict[str, Change] = {
        "park": Park(guest_id=G, slot="new"),
        "unpark": Unpark(guest_id=G, slot="op", start=True),
        "discard": Discard(guest_id=G, slot="op"),
        "receive": Receive(guest=BIGGER, source=A, slot="op", start=True),
        "expect": PrepareMigration(guest=GUEST, source=A, slot="op"),
        "snapshot": Snapshot(guest_id=G, data=DATA),
    }

    async def scenario(scene: Scene) -> None:
        await scene.send(A, Spawn(guest=GUEST))
        scene.rules.add_failure(A, step, "error", 1, "no")
        assert await scene.refused(A, verbs[step]) == "driver"
        assert scene.images.written == {}

    play(scenario)


def test_sim_file_without_slots_and_disks_is_upgraded(tmp_path: Path) -> None:
    Scene(tmp_path).hosts.close()
    old = apsw.Connection(str(tmp_path / "sim.db"))
    old.execute("DROP TABLE kept; ALTER TABLE rules DROP COLUMN chance; ALTER TABLE guests DROP COLUMN disk")
    values = ("sim-001", G, "web-1", "running", 1, 512, 1, msgspec.msgpack.encode(GUEST), 1.0, 1)
    columns = "host, id, name, power, vcpus, ram_mb, disk_gb, spec, created_at, boots"
    old.execute(f"INSERT INTO guests ({columns}) VALUES ({', '.join('?' * 10)})", values)
    old.execute("INSERT INTO rules (kind, host, step, mode) VALUES ('fail', 'sim-003', 'spawn', 'error')")
    old.close()

    async def scenario() -> None:
        scene = Scene(tmp_path)
        disk = await scene.disk()
        await scene.send(A, Park(guest_id=G, slot="op"))
        await scene.send(B, Receive(guest=GUEST, source=A, slot="op", start=True))
        assert await scene.disk() == disk
        with pytest.raises(HostRefused, match="simulated failure of spawn"):
            await scene.send(C, Spawn(guest=guest("other")))

    async def opened_again() -> None:
        scene = Scene(tmp_path)
        assert await scene.disk(), "columns are added once"

    run(scenario())
    run(opened_again())


# Moves a guest to and fro until killed, and prints the number of each move.
_MOVES_UNTIL_KILLED = """
import asyncio, sys
from pathlib import Path
from tests.hosts.sim.test_driver_moves import A, B, GUEST, Scene, move_repeatedly

async def main():
    scene = Scene(Path(sys.argv[1]))
    await move_repeatedly(scene, print)

asyncio.run(main())
"""


async def move_repeatedly(scene: Scene, report: Callable[..., None]) -> None:
    await scene.send(A, Spawn(guest=GUEST))
    here, there = A, B
    for number in itertools.count():
        slot = f"op-{number}"
        if number % 2:
            await scene.send(here, Park(guest_id=G, slot=slot))
            await scene.send(there, Receive(guest=GUEST, source=here, slot=slot, start=True))
            await scene.send(here, Discard(guest_id=G, slot=slot))
        else:
            await scene.send(there, PrepareMigration(guest=GUEST, source=here, slot=slot))
            await scene.send(here, MigrateLive(guest_id=G, destination=there, slot=slot))
        here, there = there, here
        report(number, flush=True)


def test_kill_during_moves_keeps_exactly_one_guest(tmp_path: Path) -> None:
    for number in range(4):
        directory = tmp_path / str(number)
        directory.mkdir()
        busy = subprocess.Popen(
            [sys.executable, "-c", _MOVES_UNTIL_KILLED, str(directory)], stdout=subprocess.PIPE, text=True
        )
        assert busy.stdout is not None
        enough = random.randrange(3, 40)
        for line in busy.stdout:
            if int(line) >= enough:
                os.kill(busy.pid, signal.SIGKILL)
                break
        busy.wait()
        busy.stdout.close()

        async def scenario(directory: Path = directory) -> None:
            scene = Scene(directory)
            everything = await scene.all_guests()
            running = [host for host, state in everything if not state.slot]
            parked = [host for host, state in everything if state.slot and state.disk]
            assert len(running) == 1 or (not running and len(parked) == 1), everything
            (disk,) = {state.disk for _, state in everything} - {""}
            # The interrupted move can be cleaned up, and the guest has its disk.
            for host, state in everything:
                if state.slot and running:
                    await scene.send(host, Discard(guest_id=G, slot=state.slot))
                elif state.slot:
                    await scene.send(host, Unpark(guest_id=G, slot=state.slot, start=True))
            assert [power for *_, power in await scene.places()] == ["running"]
            assert await scene.disk() == disk

        run(scenario())


def test_migrated_guest_has_spec_of_destination(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.send(A, Spawn(guest=GUEST))
        await scene.send(B, PrepareMigration(guest=GUEST, source=A, slot="op"))
        await scene.send(A, MigrateLive(guest_id=G, destination=B, slot="op"))
        assert (await scene.send(B, Spawn(guest=GUEST))).boots == 1, "an identical guest is found"
        different: Guest = BIGGER
        assert await scene.refused(B, Spawn(guest=different)) == "guest differs"

    play(scenario)
