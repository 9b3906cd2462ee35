"""Guests that move while they run, between two real hosts that share storage and between two that do not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from kilonova.hosts.messages import (
    Destroy,
    Discard,
    Expect,
    Guest,
    HurryMigration,
    LookMigration,
    MigrationState,
    Offer,
    PowerOff,
    PowerOn,
    StopMigration,
)
from kilonova.hosts.transport import HostFailed
from kilonova.ids import new_id
from tests.support.virt_hosts import until
from tests.virt.moving_guests import Pair, goes_on, make_guest, pair

# Disks are copied in pieces of 16 MiB, each of which then takes four seconds.
SLOW = {"migration_mb_per_second": 4}
# So much that there is time for whatever is to happen meanwhile, after which nobody waits for the rest.
MUCH_MB = 160


@pytest.fixture(scope="module")
def slow() -> Iterator[Pair]:
    with pair(libvirt=SLOW) as hosts:
        yield hosts


def under_way(hosts: Pair, guest: Guest) -> MigrationState:
    def look() -> MigrationState | None:
        seen: MigrationState | None = hosts.one.ask(LookMigration(guest_id=guest.id))
        return seen if seen and seen.disk_processed else None

    found: MigrationState = until(look, "it is under way")
    return found


def test_with_its_disks_there_and_back(apart: Pair) -> None:
    one, two = apart.one, apart.two
    guest = apart.boot(one, make_guest(config_drive=True))

    apart.migrate(guest, one, two)
    goes_on(two, guest)
    assert apart.runs(guest) == ["two"]
    assert one.power(guest.id) is None
    assert one.domains() == {}
    assert apart.files(one) == []
    assert apart.files(two) == [guest.id]

    apart.migrate(guest, two, one)
    goes_on(one, guest)
    assert apart.files(two) == []
    one.ask(Destroy(guest_id=guest.id))
    assert apart.files(one) == []
    assert one.domains() == {}


def test_on_shared_storage_there_and_back(together: Pair) -> None:
    one, two = together.one, together.two
    guest = together.boot(one)

    together.migrate(guest, one, two)
    goes_on(two, guest)
    assert one.power(guest.id) is None
    assert two.power(guest.id) == "running"
    # What the source may still be told must not hit the disk.
    one.ask(Destroy(guest_id=guest.id))
    assert together.files(one) == [guest.id]

    together.migrate(guest, two, one)
    goes_on(one, guest)
    assert together.runs(guest) == ["one"]
    one.ask(Destroy(guest_id=guest.id))
    assert together.files(one) == []


def test_a_paused_guest_stays_paused(together: Pair) -> None:
    from kilonova.hosts.messages import Pause, Unpause

    guest = together.boot(together.one)
    together.one.ask(Pause(guest_id=guest.id))
    together.migrate(guest, together.one, together.two)

    assert together.two.power(guest.id) == "paused"
    together.two.ask(Unpause(guest_id=guest.id))
    goes_on(together.two, guest)
    together.two.ask(Destroy(guest_id=guest.id))


def test_whether_disks_move_is_not_a_matter_of_wishes(apart: Pair, together: Pair) -> None:
    for hosts, block, reason in ((apart, False, "share no storage"), (together, True, "share the storage of disks")):
        guest = hosts.boot(hosts.one)
        with pytest.raises(HostFailed, match=reason):
            hosts.prepare(guest, hosts.one, hosts.two, block=block)
        assert hosts.two.guests() == []
        hosts.one.ask(Destroy(guest_id=guest.id))


def test_what_cannot_work_is_refused_before_anything_moves(apart: Pair) -> None:
    one, two = apart.one, apart.two
    guest, slot = apart.boot(one), new_id()

    def offer(**reach: str) -> object:
        return one.ask(Offer(guest_id=guest.id, destination="two", slot=slot, reach={**two.reach(), **reach}))

    nowhere = f"10.{100 + apart.site.number}.0.99"
    for reach, reason in (
        ({"migration": ""}, "does not say where its libvirt"),
        ({"migration": f"qemu+tcp://{nowhere}/system"}, f"libvirt of two at {nowhere} port 16509 cannot be reached"),
        ({"migration": f"qemu+tcp://{two.host.address}:1/system"}, "port 1 cannot be reached from one"),
        ({"disks": f"http://{two.host.address}:1"}, "two cannot be asked by one"),
        ({"guests": nowhere}, "guests of two"),
    ):
        with pytest.raises(HostFailed, match=reason):
            offer(**reach)
    offered = offer()
    assert isinstance(offered, dict)
    for change, reason in (
        ({"machine": "pc-i440fx-99.0"}, "two has no machine pc-i440fx-99.0"),
        (
            {"cpu": "<cpu mode='custom' match='exact'><model fallback='forbid'>Nonesuch</model></cpu>"},
            "processor of two",
        ),
        ({"disks": [{**offered["disks"][0], "used": 1 << 60}]}, "GiB of disk left"),
    ):
        with pytest.raises(HostFailed, match=reason):
            expect = Expect(guest=guest, source="one", slot=slot, offer={**offered, **change}, reach=one.reach())
            two.ask(expect)
    assert two.guests() == []
    assert apart.files(two) == []

    one.ask(PowerOff(guest_id=guest.id))
    with pytest.raises(HostFailed, match="does not run") as refused:
        offer()
    assert refused.value.kind == "not running"
    one.ask(Destroy(guest_id=guest.id))


def test_every_command_may_come_twice(apart: Pair) -> None:
    one, two = apart.one, apart.two
    guest = apart.boot(one)
    slot = apart.prepare(guest, one, two)
    assert apart.prepare(guest, one, two, slot=slot) == slot
    assert two.slots(guest.id) == [slot]

    two.ask(Discard(guest_id=guest.id, slot=slot))
    two.ask(Discard(guest_id=guest.id, slot=slot))
    assert apart.files(two) == []
    with pytest.raises(HostFailed) as refused:
        apart.begin(guest, one, two, slot).result()
    assert refused.value.kind == "no such slot"

    apart.prepare(guest, one, two, slot=slot)
    apart.begin(guest, one, two, slot).result()
    apart.begin(guest, one, two, slot).result()
    two.ask(Discard(guest_id=guest.id, slot=slot))
    goes_on(two, guest)
    two.ask(Destroy(guest_id=guest.id))
    with pytest.raises(HostFailed) as missing:
        apart.begin(guest, one, two, slot).result()
    assert missing.value.kind == "missing guest"


def test_it_is_watched_and_stopped(slow: Pair) -> None:
    guest = slow.boot(slow.one, filled_mb=MUCH_MB)
    slot = slow.prepare(guest, slow.one, slow.two)
    moving = slow.begin(guest, slow.one, slow.two, slot)

    seen = under_way(slow, guest)
    assert seen.disk_total >= MUCH_MB << 20 > seen.disk_processed
    # One that only comes is not here.
    assert slow.two.power(guest.id) is None
    assert slow.two.slots(guest.id) == [slot]
    slow.one.ask(StopMigration(guest_id=guest.id))

    with pytest.raises(HostFailed) as stopped:
        moving.result()
    assert stopped.value.kind == "interrupted"
    assert slow.one.ask(LookMigration(guest_id=guest.id)) is None
    assert slow.one.power(guest.id) == "running"
    assert slow.two.domains() == {}
    slow.two.ask(Discard(guest_id=guest.id, slot=slot))
    assert slow.files(slow.two) == []
    assert slow.files(slow.one) == [guest.id]
    goes_on(slow.one, guest)
    slow.one.ask(Destroy(guest_id=guest.id))


def test_it_is_hurried(slow: Pair) -> None:
    guest = slow.boot(slow.one, filled_mb=48)
    moving = slow.begin(guest, slow.one, slow.two, slow.prepare(guest, slow.one, slow.two))
    under_way(slow, guest)

    slow.one.ask(HurryMigration(guest_id=guest.id))
    moving.result()
    assert slow.two.power(guest.id) == "running"
    goes_on(slow.two, guest)
    slow.two.ask(Destroy(guest_id=guest.id))


def test_the_slot_is_discarded_in_the_middle(slow: Pair) -> None:
    """Then it cannot come any more."""
    guest = slow.boot(slow.one, filled_mb=MUCH_MB)
    slot = slow.prepare(guest, slow.one, slow.two)
    moving = slow.begin(guest, slow.one, slow.two, slot)
    under_way(slow, guest)

    slow.two.ask(Discard(guest_id=guest.id, slot=slot))
    with pytest.raises(HostFailed):
        moving.result()
    assert slow.runs(guest) == ["one"]
    assert slow.two.guests() == []
    assert slow.files(slow.two) == []
    goes_on(slow.one, guest)
    slow.one.ask(Destroy(guest_id=guest.id))


def test_the_agent_of_the_source_is_killed_in_the_middle(slow: Pair) -> None:
    """libvirt goes on, and the next process watches."""
    guest = slow.boot(slow.one, filled_mb=72)
    slot = slow.prepare(guest, slow.one, slow.two)
    slow.begin(guest, slow.one, slow.two, slot)
    under_way(slow, guest)
    slow.one.kill()
    slow.one.start()
    assert slow.one.ask(LookMigration(guest_id=guest.id)) is not None

    slow.begin(guest, slow.one, slow.two, slot).result()
    assert slow.runs(guest) == ["two"]
    assert slow.files(slow.one) == []
    goes_on(slow.two, guest)
    slow.two.ask(Destroy(guest_id=guest.id))


def test_the_agent_of_the_source_is_killed_and_the_migration_stopped(slow: Pair) -> None:
    guest = slow.boot(slow.one, filled_mb=MUCH_MB)
    slot = slow.prepare(guest, slow.one, slow.two)
    slow.begin(guest, slow.one, slow.two, slot)
    under_way(slow, guest)
    slow.one.kill()
    slow.one.start()

    slow.one.ask(StopMigration(guest_id=guest.id))
    assert slow.runs(guest) == ["one"]
    assert slow.one.power(guest.id) == "running"
    slow.two.ask(Discard(guest_id=guest.id, slot=slot))
    goes_on(slow.one, guest)
    slow.one.ask(Destroy(guest_id=guest.id))


def test_the_agent_of_the_destination_is_killed_in_the_middle(slow: Pair) -> None:
    """The guest comes all the same, and so does what it has said, once somebody is there to take it."""
    guest = slow.boot(slow.one, filled_mb=24)
    slot = slow.prepare(guest, slow.one, slow.two)
    moving = slow.begin(guest, slow.one, slow.two, slot)
    under_way(slow, guest)
    slow.two.kill()
    slow.one.ask(HurryMigration(guest_id=guest.id))
    until(lambda: slow.runs(guest) == ["two"], "it has come")
    slow.two.start()

    moving.result()
    goes_on(slow.two, guest)
    assert slow.files(slow.one) == []
    slow.two.ask(Destroy(guest_id=guest.id))


def test_libvirt_of_the_source_is_killed_in_the_last_moment(apart: Pair) -> None:
    """So that it does not know that the guest has come, and still has it."""
    one, two = apart.one, apart.two
    guest = apart.boot(one)
    files, kept = one.instances / guest.id, apart.site.directory / "kept"
    domain = apart.site.directory / "domain.xml"
    domain.write_text(one.host.do("virsh", "dumpxml", "--inactive", f"kn-{guest.id}"))
    shutil.copytree(files, kept)
    slot = apart.prepare(guest, one, two)
    apart.begin(guest, one, two, slot).result()

    one.kill()
    shutil.copytree(kept, files)
    left = {"slot": slot, "destination": "two", "shared": False, "running": True, "reach": two.reach()}
    (files / "leaving").write_text(json.dumps(left))
    one.host.do("virsh", "define", domain)
    one.start()
    with pytest.raises(HostFailed, match="no guest"):
        one.ask(PowerOn(guest_id=guest.id))
    assert one.guests() == []
    assert one.domains() == {}
    assert apart.files(one) == []
    assert apart.runs(guest) == ["two"]
    goes_on(two, guest)
    two.ask(Destroy(guest_id=guest.id))


def test_libvirt_has_left_something_of_an_earlier_try(apart: Pair) -> None:
    one, two = apart.one, apart.two
    guest = apart.boot(one)
    storage = {"driver": "null-co", "node-name": "migration-vda-storage"}
    over = {"driver": "raw", "node-name": "migration-vda-format", "file": storage["node-name"]}
    for node in (storage, over):
        said = json.dumps({"execute": "blockdev-add", "arguments": node})
        one.host.do("virsh", "qemu-monitor-command", f"kn-{guest.id}", said)
    apart.migrate(guest, one, two)
    goes_on(two, guest)
    two.ask(Destroy(guest_id=guest.id))


def test_the_destination_dies_in_the_middle(slow: Pair) -> None:
    guest = slow.boot(slow.one, filled_mb=MUCH_MB)
    slot = slow.prepare(guest, slow.one, slow.two)
    moving = slow.begin(guest, slow.one, slow.two, slot, seconds=300)
    under_way(slow, guest)

    slow.two.host.cut_power()
    with pytest.raises(HostFailed):
        moving.result(300)
    assert slow.one.power(guest.id) == "running"
    goes_on(slow.one, guest)

    slow.two.host.power_on()
    slow.two.start()
    assert slow.two.slots(guest.id) == [slot]
    assert slow.two.power(guest.id) is None
    slow.two.ask(Discard(guest_id=guest.id, slot=slot))
    assert slow.two.guests() == []
    assert slow.files(slow.two) == []
    slow.one.ask(Destroy(guest_id=guest.id))


def test_the_source_dies_in_the_middle(slow: Pair) -> None:
    guest = slow.boot(slow.one, filled_mb=MUCH_MB)
    slot = slow.prepare(guest, slow.one, slow.two)
    slow.begin(guest, slow.one, slow.two, slot)
    under_way(slow, guest)

    slow.one.host.cut_power()
    slow.two.ask(Discard(guest_id=guest.id, slot=slot))
    assert slow.two.guests() == []
    assert slow.two.domains() == {}
    assert slow.files(slow.two) == []

    slow.one.host.power_on()
    slow.one.start()
    assert slow.one.power(guest.id) == "shutdown"
    slow.one.ask(PowerOn(guest_id=guest.id))
    until(lambda: slow.one.ticks(guest.id).count(1) == 2, "it has booted again")
    slow.one.ask(Destroy(guest_id=guest.id))
