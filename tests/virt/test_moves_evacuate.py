"""A guest whose host lost its power goes on elsewhere, and only there."""

from __future__ import annotations

import pytest

from kilonova.hosts.messages import Destroy, Guest, PowerOn, Spawn, Transfer
from kilonova.hosts.transport import HostFailed
from tests.support.virt_hosts import until
from tests.virt.moving_guests import Pair, is_filled


def spawn(hosts: Pair, guest: Guest) -> Spawn:
    return Spawn(guest=guest, data=Transfer(url=str(hosts.site.micro_image()), token=""), disk_of="one")


def test_with_its_disk(together: Pair) -> None:
    one, two = together.one, together.two
    guest = together.boot(one, filled_mb=4)

    # While the old one lives, its disk is locked; nothing has changed hands.
    with pytest.raises(HostFailed, match="still runs on one: its disk is in use there"):
        two.ask(spawn(together, guest))
    two.ask(Destroy(guest_id=guest.id))
    assert one.power(guest.id) == "running"
    assert together.runs(guest) == ["one"]

    one.host.cut_power()
    two.ask(spawn(together, guest))
    two.ask(spawn(together, guest))
    until(lambda: two.ticks(guest.id).count(1) == 2, "it has booted again")
    assert is_filled(two, guest)

    one.host.power_on()
    one.start()
    # What is left there is a domain without power, of a guest that is no longer this host's.
    assert one.power(guest.id) == "shutdown"
    with pytest.raises(HostFailed):
        one.ask(PowerOn(guest_id=guest.id))
    one.ask(Destroy(guest_id=guest.id))
    assert one.domains() == {}
    assert one.guests() == []
    assert together.runs(guest) == ["two"]
    assert is_filled(two, guest)

    two.ask(Destroy(guest_id=guest.id))
    assert together.files(two) == []


def test_undone(together: Pair) -> None:
    """The destination gives the disk back, as the guest was."""
    one, two = together.one, together.two
    guest = together.boot(one, filled_mb=4)
    one.host.cut_power()
    two.ask(spawn(together, guest))
    two.ask(Destroy(guest_id=guest.id))
    assert two.guests() == []
    assert two.domains() == {}

    one.host.power_on()
    one.start()
    assert one.power(guest.id) == "shutdown"
    assert is_filled(one, guest)
    assert one.ask(PowerOn(guest_id=guest.id)).power == "running"
    one.ask(Destroy(guest_id=guest.id))
    assert together.files(one) == []


def test_without_its_disk(apart: Pair) -> None:
    one, two = apart.one, apart.two
    guest = apart.boot(one, filled_mb=4)
    one.host.cut_power()
    two.ask(spawn(apart, guest))
    until(lambda: two.ticks(guest.id), "it counts")
    assert not is_filled(two, guest)

    one.host.power_on()
    one.start()
    assert one.power(guest.id) == "shutdown"
    one.ask(Destroy(guest_id=guest.id))
    assert apart.files(one) == []
    two.ask(Destroy(guest_id=guest.id))
