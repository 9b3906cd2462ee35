"""Evacuation of guests whose host lost power."""

from __future__ import annotations

import pytest

from kilonova.hosts.messages import Guest, Transfer
from kilonova.hosts.messages.verbs import Destroy, PowerOn, Spawn
from kilonova.hosts.transport import HostRefused
from tests.support.virt_hosts import wait_until
from tests.virt.move_support import HostPair, is_filled


def spawn_command(hosts: HostPair, guest: Guest) -> Spawn:
    return Spawn(guest=guest, data=Transfer(url=str(hosts.site.micro_image()), ticket=""), disk_of="one")


def test_evacuation_on_shared_storage_keeps_the_disk(shared_pair: HostPair) -> None:
    one, two = shared_pair.one, shared_pair.two
    guest = shared_pair.boot(one, filled_mb=4)

    # While the guest still runs, its disk is locked, and its files keep their owner.
    with pytest.raises(HostRefused, match="still runs on one: its disk disk is locked"):
        two.call(spawn_command(shared_pair, guest))
    two.call(Destroy(guest_id=guest.id))
    assert one.power(guest.id) == "running"
    assert shared_pair.hosts_running(guest) == ["one"]

    one.host.cut_power()
    two.call(spawn_command(shared_pair, guest))
    two.call(spawn_command(shared_pair, guest))
    wait_until(lambda: two.ticks(guest.id).count(1) == 2, "the guest has booted again")
    assert is_filled(two, guest)

    one.host.power_on()
    one.start()
    # The old host still has the stopped domain of a guest that it no longer owns.
    assert one.power(guest.id) == "shutdown"
    with pytest.raises(HostRefused):
        one.call(PowerOn(guest_id=guest.id))
    one.call(Destroy(guest_id=guest.id))
    assert one.domains() == {}
    assert one.guests() == []
    assert shared_pair.hosts_running(guest) == ["two"]
    assert is_filled(two, guest)

    two.call(Destroy(guest_id=guest.id))
    assert shared_pair.instance_files(two) == []


def test_undone_evacuation_returns_the_disk(shared_pair: HostPair) -> None:
    """The destination returns disk and spec to the source."""
    one, two = shared_pair.one, shared_pair.two
    guest = shared_pair.boot(one, filled_mb=4)
    one.host.cut_power()
    two.call(spawn_command(shared_pair, guest))
    two.call(Destroy(guest_id=guest.id))
    assert two.guests() == []
    assert two.domains() == {}

    one.host.power_on()
    one.start()
    assert one.power(guest.id) == "shutdown"
    assert is_filled(one, guest)
    assert one.call(PowerOn(guest_id=guest.id)).power == "running"
    one.call(Destroy(guest_id=guest.id))
    assert shared_pair.instance_files(one) == []


def test_evacuation_without_shared_storage_rebuilds_the_disk(local_pair: HostPair) -> None:
    one, two = local_pair.one, local_pair.two
    guest = local_pair.boot(one, filled_mb=4)
    one.host.cut_power()
    two.call(spawn_command(local_pair, guest))
    wait_until(lambda: two.ticks(guest.id), "the guest counts")
    assert not is_filled(two, guest)

    one.host.power_on()
    one.start()
    assert one.power(guest.id) == "shutdown"
    one.call(Destroy(guest_id=guest.id))
    assert local_pair.instance_files(one) == []
    two.call(Destroy(guest_id=guest.id))
