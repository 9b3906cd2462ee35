"""Live migration between two libvirt hosts, with and without shared storage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from kilonova.hosts.messages import Guest, MigrationState
from kilonova.hosts.messages.verbs import (
    CheckMigrationSource,
    Destroy,
    Discard,
    ForceCompleteMigration,
    GetMigration,
    PowerOff,
    PowerOn,
    PrepareMigration,
    StopMigration,
)
from kilonova.hosts.transport import HostRefused
from kilonova.ids import new_id
from tests.support.virt_hosts import wait_until
from tests.virt.move_support import TICKET, HostPair, assert_counting, host_pair, make_guest

# Disks are copied in chunks of 16 MiB, each of which takes four seconds.
SLOW_MIGRATION = {"migration_mb_per_second": 4}
# Enough data that tests can act during the copy. They do not wait for its end.
LARGE_MB = 160


@pytest.fixture(scope="module")
def slow() -> Iterator[HostPair]:
    with host_pair(libvirt=SLOW_MIGRATION) as hosts:
        yield hosts


def wait_for_progress(hosts: HostPair, guest: Guest) -> MigrationState:
    def read_progress() -> MigrationState | None:
        state: MigrationState | None = hosts.one.call(GetMigration(guest_id=guest.id))
        return state if state and state.disk_processed else None

    found: MigrationState = wait_until(read_progress, "the migration is running")
    return found


def test_block_migration_there_and_back(local_pair: HostPair) -> None:
    one, two = local_pair.one, local_pair.two
    guest = local_pair.boot(one, make_guest(config_drive=True))

    local_pair.migrate(guest, one, two)
    assert_counting(two, guest)
    assert local_pair.hosts_running(guest) == ["two"]
    assert one.power(guest.id) is None
    assert one.domains() == {}
    assert local_pair.instance_files(one) == []
    assert local_pair.instance_files(two) == [guest.id]

    local_pair.migrate(guest, two, one)
    assert_counting(one, guest)
    assert local_pair.instance_files(two) == []
    one.call(Destroy(guest_id=guest.id))
    assert local_pair.instance_files(one) == []
    assert one.domains() == {}


def test_migration_on_shared_storage_there_and_back(shared_pair: HostPair) -> None:
    one, two = shared_pair.one, shared_pair.two
    guest = shared_pair.boot(one)

    shared_pair.migrate(guest, one, two)
    assert_counting(two, guest)
    assert one.power(guest.id) is None
    assert two.power(guest.id) == "running"
    # Late commands to the source must not touch the disk.
    one.call(Destroy(guest_id=guest.id))
    assert shared_pair.instance_files(one) == [guest.id]

    shared_pair.migrate(guest, two, one)
    assert_counting(one, guest)
    assert shared_pair.hosts_running(guest) == ["one"]
    one.call(Destroy(guest_id=guest.id))
    assert shared_pair.instance_files(one) == []


def test_paused_guest_stays_paused(shared_pair: HostPair) -> None:
    from kilonova.hosts.messages.verbs import Pause, Unpause

    guest = shared_pair.boot(shared_pair.one)
    shared_pair.one.call(Pause(guest_id=guest.id))
    shared_pair.migrate(guest, shared_pair.one, shared_pair.two)

    assert shared_pair.two.power(guest.id) == "paused"
    shared_pair.two.call(Unpause(guest_id=guest.id))
    assert_counting(shared_pair.two, guest)
    shared_pair.two.call(Destroy(guest_id=guest.id))


def test_block_migration_must_fit_the_storage(local_pair: HostPair, shared_pair: HostPair) -> None:
    for hosts, block, reason in ((local_pair, False, "share no storage"), (shared_pair, True, "share the storage: ")):
        guest = hosts.boot(hosts.one)
        with pytest.raises(HostRefused, match=reason):
            hosts.prepare_migration(guest, hosts.one, hosts.two, block=block)
        assert hosts.two.guests() == []
        hosts.one.call(Destroy(guest_id=guest.id))


def test_impossible_migrations_are_refused_before_they_start(local_pair: HostPair) -> None:
    one, two = local_pair.one, local_pair.two
    guest, slot = local_pair.boot(one), new_id()

    def offer(**reach: str) -> object:
        return one.call(
            CheckMigrationSource(
                guest_id=guest.id, destination="two", slot=slot, reach={**two.addresses(), **reach}, ticket=TICKET
            )
        )

    unused_address = f"10.{100 + local_pair.site.number}.0.99"
    for reach, reason in (
        ({"migration": ""}, "reports no libvirt URI"),
        (
            {"migration": f"qemu+tcp://{unused_address}/system"},
            f"libvirt of two at {unused_address} port 16509 cannot be reached",
        ),
        ({"migration": f"qemu+tcp://{two.host.address}:1/system"}, "port 1 cannot be reached from one"),
        ({"disks": f"http://{two.host.address}:1"}, "the agent of two cannot be reached from one"),
        ({"guests": unused_address}, "guests of two"),
    ):
        with pytest.raises(HostRefused, match=reason):
            offer(**reach)
    offered = offer()
    assert isinstance(offered, dict)
    for change, reason in (
        ({"machine": "pc-i440fx-99.0"}, "two does not support machine type pc-i440fx-99.0"),
        (
            {"cpu": "<cpu mode='custom' match='exact'><model fallback='forbid'>Nonesuch</model></cpu>"},
            "CPU",
        ),
        ({"disks": [{**offered["disks"][0], "used": 1 << 60}]}, "GiB free"),
    ):
        with pytest.raises(HostRefused, match=reason):
            expect = PrepareMigration(
                guest=guest, source="one", slot=slot, offer={**offered, **change}, reach=one.addresses(), ticket=TICKET
            )
            two.call(expect)
    assert two.guests() == []
    assert local_pair.instance_files(two) == []

    one.call(PowerOff(guest_id=guest.id))
    with pytest.raises(HostRefused, match="does not run") as refused:
        offer()
    assert refused.value.kind == "not running"
    one.call(Destroy(guest_id=guest.id))


def test_migration_commands_are_idempotent(local_pair: HostPair) -> None:
    one, two = local_pair.one, local_pair.two
    guest = local_pair.boot(one)
    slot = local_pair.prepare_migration(guest, one, two)
    assert local_pair.prepare_migration(guest, one, two, slot=slot) == slot
    assert two.slots(guest.id) == [slot]

    two.call(Discard(guest_id=guest.id, slot=slot))
    two.call(Discard(guest_id=guest.id, slot=slot))
    assert local_pair.instance_files(two) == []
    with pytest.raises(HostRefused) as refused:
        local_pair.start_migration(guest, one, two, slot).result()
    assert refused.value.kind == "no such slot"

    local_pair.prepare_migration(guest, one, two, slot=slot)
    local_pair.start_migration(guest, one, two, slot).result()
    local_pair.start_migration(guest, one, two, slot).result()
    two.call(Discard(guest_id=guest.id, slot=slot))
    assert_counting(two, guest)
    two.call(Destroy(guest_id=guest.id))
    with pytest.raises(HostRefused) as missing:
        local_pair.start_migration(guest, one, two, slot).result()
    assert missing.value.kind == "missing guest"


def test_progress_and_abort(slow: HostPair) -> None:
    guest = slow.boot(slow.one, filled_mb=LARGE_MB)
    slot = slow.prepare_migration(guest, slow.one, slow.two)
    migration = slow.start_migration(guest, slow.one, slow.two, slot)

    state = wait_for_progress(slow, guest)
    assert state.disk_total >= LARGE_MB << 20 > state.disk_processed
    # An incoming guest is not listed.
    assert slow.two.power(guest.id) is None
    assert slow.two.slots(guest.id) == [slot]
    slow.one.call(StopMigration(guest_id=guest.id))

    with pytest.raises(HostRefused) as stopped:
        migration.result()
    assert stopped.value.kind == "interrupted"
    assert slow.one.call(GetMigration(guest_id=guest.id)) is None
    assert slow.one.power(guest.id) == "running"
    assert slow.two.domains() == {}
    slow.two.call(Discard(guest_id=guest.id, slot=slot))
    assert slow.instance_files(slow.two) == []
    assert slow.instance_files(slow.one) == [guest.id]
    assert_counting(slow.one, guest)
    slow.one.call(Destroy(guest_id=guest.id))


def test_force_complete(slow: HostPair) -> None:
    guest = slow.boot(slow.one, filled_mb=48)
    migration = slow.start_migration(guest, slow.one, slow.two, slow.prepare_migration(guest, slow.one, slow.two))
    wait_for_progress(slow, guest)

    slow.one.call(ForceCompleteMigration(guest_id=guest.id))
    migration.result()
    assert slow.two.power(guest.id) == "running"
    assert_counting(slow.two, guest)
    slow.two.call(Destroy(guest_id=guest.id))


def test_discarded_slot_ends_the_migration(slow: HostPair) -> None:
    """The guest stays on the source."""
    guest = slow.boot(slow.one, filled_mb=LARGE_MB)
    slot = slow.prepare_migration(guest, slow.one, slow.two)
    migration = slow.start_migration(guest, slow.one, slow.two, slot)
    wait_for_progress(slow, guest)

    slow.two.call(Discard(guest_id=guest.id, slot=slot))
    with pytest.raises(HostRefused):
        migration.result()
    assert slow.hosts_running(guest) == ["one"]
    assert slow.two.guests() == []
    assert slow.instance_files(slow.two) == []
    assert_counting(slow.one, guest)
    slow.one.call(Destroy(guest_id=guest.id))


def test_migration_continues_without_the_source_agent(slow: HostPair) -> None:
    """libvirt continues, and the restarted agent follows the migration."""
    guest = slow.boot(slow.one, filled_mb=72)
    slot = slow.prepare_migration(guest, slow.one, slow.two)
    slow.start_migration(guest, slow.one, slow.two, slot)
    wait_for_progress(slow, guest)
    slow.one.kill()
    slow.one.start()
    assert slow.one.call(GetMigration(guest_id=guest.id)) is not None

    slow.start_migration(guest, slow.one, slow.two, slot).result()
    assert slow.hosts_running(guest) == ["two"]
    assert slow.instance_files(slow.one) == []
    assert_counting(slow.two, guest)
    slow.two.call(Destroy(guest_id=guest.id))


def test_restarted_source_agent_can_abort(slow: HostPair) -> None:
    guest = slow.boot(slow.one, filled_mb=LARGE_MB)
    slot = slow.prepare_migration(guest, slow.one, slow.two)
    slow.start_migration(guest, slow.one, slow.two, slot)
    wait_for_progress(slow, guest)
    slow.one.kill()
    slow.one.start()

    slow.one.call(StopMigration(guest_id=guest.id))
    assert slow.hosts_running(guest) == ["one"]
    assert slow.one.power(guest.id) == "running"
    slow.two.call(Discard(guest_id=guest.id, slot=slot))
    assert_counting(slow.one, guest)
    slow.one.call(Destroy(guest_id=guest.id))


def test_migration_continues_without_the_destination_agent(slow: HostPair) -> None:
    """The guest arrives nevertheless, and its console log follows when the agent is back."""
    guest = slow.boot(slow.one, filled_mb=24)
    slot = slow.prepare_migration(guest, slow.one, slow.two)
    migration = slow.start_migration(guest, slow.one, slow.two, slot)
    wait_for_progress(slow, guest)
    slow.two.kill()
    slow.one.call(ForceCompleteMigration(guest_id=guest.id))
    wait_until(lambda: slow.hosts_running(guest) == ["two"], "the guest has arrived")
    slow.two.start()

    migration.result()
    assert_counting(slow.two, guest)
    assert slow.instance_files(slow.one) == []
    slow.two.call(Destroy(guest_id=guest.id))


def test_source_libvirt_killed_at_the_end_of_the_migration(local_pair: HostPair) -> None:
    """It then still has the domain of a guest that has arrived at the destination."""
    one, two = local_pair.one, local_pair.two
    guest = local_pair.boot(one)
    files, backup = one.instances / guest.id, local_pair.site.directory / "backup"
    domain = local_pair.site.directory / "domain.xml"
    domain.write_text(one.host.execute("virsh", "dumpxml", "--inactive", f"kn-{guest.id}"))
    shutil.copytree(files, backup)
    slot = local_pair.prepare_migration(guest, one, two)
    local_pair.start_migration(guest, one, two, slot).result()

    one.kill()
    shutil.copytree(backup, files)
    leaving = {"slot": slot, "destination": "two", "shared": False, "running": True, "reach": two.addresses()}
    (files / "leaving").write_text(json.dumps(leaving))
    one.host.execute("virsh", "define", domain)
    one.start()
    with pytest.raises(HostRefused, match="no guest"):
        one.call(PowerOn(guest_id=guest.id))
    assert one.guests() == []
    assert one.domains() == {}
    assert local_pair.instance_files(one) == []
    assert local_pair.hosts_running(guest) == ["two"]
    assert_counting(two, guest)
    two.call(Destroy(guest_id=guest.id))


def test_stale_qemu_nodes_do_not_block_a_migration(local_pair: HostPair) -> None:
    one, two = local_pair.one, local_pair.two
    guest = local_pair.boot(one)
    storage = {"driver": "null-co", "node-name": "migration-vda-storage"}
    format_node = {"driver": "raw", "node-name": "migration-vda-format", "file": storage["node-name"]}
    for node in (storage, format_node):
        command = json.dumps({"execute": "blockdev-add", "arguments": node})
        one.host.execute("virsh", "qemu-monitor-command", f"kn-{guest.id}", command)
    local_pair.migrate(guest, one, two)
    assert_counting(two, guest)
    two.call(Destroy(guest_id=guest.id))


def test_destination_dies_during_the_migration(slow: HostPair) -> None:
    guest = slow.boot(slow.one, filled_mb=LARGE_MB)
    slot = slow.prepare_migration(guest, slow.one, slow.two)
    migration = slow.start_migration(guest, slow.one, slow.two, slot, seconds=300)
    wait_for_progress(slow, guest)

    slow.two.host.cut_power()
    with pytest.raises(HostRefused):
        migration.result(300)
    assert slow.one.power(guest.id) == "running"
    assert_counting(slow.one, guest)

    slow.two.host.power_on()
    slow.two.start()
    assert slow.two.slots(guest.id) == [slot]
    assert slow.two.power(guest.id) is None
    slow.two.call(Discard(guest_id=guest.id, slot=slot))
    assert slow.two.guests() == []
    assert slow.instance_files(slow.two) == []
    slow.one.call(Destroy(guest_id=guest.id))


def test_source_dies_during_the_migration(slow: HostPair) -> None:
    guest = slow.boot(slow.one, filled_mb=LARGE_MB)
    slot = slow.prepare_migration(guest, slow.one, slow.two)
    slow.start_migration(guest, slow.one, slow.two, slot)
    wait_for_progress(slow, guest)

    slow.one.host.cut_power()
    slow.two.call(Discard(guest_id=guest.id, slot=slot))
    assert slow.two.guests() == []
    assert slow.two.domains() == {}
    assert slow.instance_files(slow.two) == []

    slow.one.host.power_on()
    slow.one.start()
    assert slow.one.power(guest.id) == "shutdown"
    slow.one.call(PowerOn(guest_id=guest.id))
    wait_until(lambda: slow.one.ticks(guest.id).count(1) == 2, "the guest has booted again")
    slow.one.call(Destroy(guest_id=guest.id))
