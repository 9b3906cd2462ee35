"""Guests that move while they stand still: put aside, received elsewhere or in another size, and taken out again."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from kilonova.hosts.drivers.libvirt import formats
from kilonova.hosts.messages import (
    Destroy,
    Discard,
    Flavor,
    Guest,
    LocalDisk,
    Park,
    PowerOff,
    PowerOn,
    Receive,
    Unpark,
)
from kilonova.hosts.transport import HostFailed
from kilonova.ids import new_id
from tests.support.lone_agent import Agent
from tests.support.virt_hosts import until
from tests.virt.moving_guests import Pair, is_filled, make_guest

GIB = 1 << 30
LARGER = Flavor(name="larger", vcpus=1, ram_mb=96, disk_gb=2, ephemeral_gb=0, swap_mb=0)


@pytest.fixture(params=["apart", "together"])
def hosts(request: pytest.FixtureRequest) -> Pair:
    found: Pair = request.getfixturevalue(request.param)
    return found


def test_to_another_host_and_confirmed(hosts: Pair) -> None:
    one, two = hosts.one, hosts.two
    guest, slot = hosts.boot(one, make_guest(config_drive=True), filled_mb=4), new_id()
    aside(one, guest, slot)
    assert one.power(guest.id) is None
    assert one.slots(guest.id) == [slot]

    new = structs.replace(guest, flavor=LARGER)
    receive = Receive(guest=new, source="one", slot=slot, start=True, reach=one.reach())
    assert two.ask(receive).power == "running"
    two.says(guest.id, "TICK 00002")
    assert two.ask(receive).power == "running"
    assert root_of(hosts, two, guest).size == 2 * GIB
    assert is_filled(two, guest)
    assert hosts.runs(guest) == ["two"]
    with pytest.raises(HostFailed) as other:
        two.ask(structs.replace(receive, guest=structs.replace(new, flavor=structs.replace(LARGER, vcpus=2))))
    assert other.value.kind == "guest differs"

    one.ask(Discard(guest_id=guest.id, slot=slot))
    one.ask(Discard(guest_id=guest.id, slot=slot))
    assert one.guests() == []
    # What the source keeps no more is not needed either.
    assert two.ask(receive).power == "running"
    two.ask(PowerOff(guest_id=guest.id))
    two.ask(PowerOn(guest_id=guest.id))
    two.ask(Destroy(guest_id=guest.id))
    assert hosts.files(one) == hosts.files(two) == []


def test_to_another_host_and_back(hosts: Pair) -> None:
    one, two = hosts.one, hosts.two
    guest, slot, back = hosts.boot(one), new_id(), new_id()
    aside(one, guest, slot)
    two.ask(
        Receive(guest=structs.replace(guest, flavor=LARGER), source="one", slot=slot, start=True, reach=one.reach())
    )
    two.says(guest.id, "TICK 00001")

    aside(two, guest, back)
    assert one.ask(Unpark(guest_id=guest.id, slot=slot, start=True)).power == "running"
    assert one.ask(Unpark(guest_id=guest.id, slot=slot, start=True)).power == "running"
    assert root_of(hosts, one, guest).size == GIB
    assert one.slots(guest.id) == []
    until(lambda: one.ticks(guest.id).count(1) == 2, "it has booted again from its old disk")
    two.ask(Discard(guest_id=guest.id, slot=back))
    assert hosts.runs(guest) == ["one"]
    one.ask(Destroy(guest_id=guest.id))
    assert hosts.files(one) == hosts.files(two) == []


def test_larger_on_the_same_host_and_back(hosts: Pair) -> None:
    one = hosts.one
    local = [LocalDisk(size_mb=8), LocalDisk(size_mb=4, format="swap")]
    guest, slot = hosts.boot(one, make_guest(local_disks=local)), new_id()
    aside(one, guest, slot)

    more = [LocalDisk(size_mb=16), LocalDisk(size_mb=6, format="swap")]
    new = structs.replace(guest, flavor=LARGER, local_disks=more)
    one.ask(Receive(guest=new, source="one", slot=slot, start=True))
    until(lambda: one.ticks(guest.id), "it counts")
    assert sizes(hosts, one, guest) == {"disk": 2 * GIB, "disk.eph0": 16 << 20, "disk.swap": 6 << 20}

    one.ask(PowerOff(guest_id=guest.id))
    # The guest beside is replaced by what the slot holds.
    assert one.ask(Unpark(guest_id=guest.id, slot=slot, start=False)).power == "shutdown"
    assert sizes(hosts, one, guest) == {"disk": GIB, "disk.eph0": 8 << 20, "disk.swap": 4 << 20}
    one.ask(Destroy(guest_id=guest.id))
    assert hosts.files(one) == []


def test_what_cannot_be(hosts: Pair) -> None:
    one, two = hosts.one, hosts.two
    guest, slot = hosts.boot(one), new_id()
    with pytest.raises(HostFailed, match="runs, so that it cannot be put aside"):
        one.ask(Park(guest_id=guest.id, slot=slot))
    with pytest.raises(HostFailed) as empty:
        two.ask(Unpark(guest_id=guest.id, slot=slot, start=True))
    assert empty.value.kind == "no such slot"
    with pytest.raises(HostFailed) as nothing:
        two.ask(Receive(guest=guest, source="one", slot=slot, start=True, reach=one.reach()))
    assert nothing.value.kind in ("no such slot", "guest differs")

    aside(one, guest, slot)
    one.ask(Park(guest_id=guest.id, slot=slot))
    smaller = structs.replace(guest, flavor=structs.replace(guest.flavor, ram_mb=32))
    with pytest.raises(HostFailed) as missing:
        one.ask(Park(guest_id=guest.id, slot=new_id()))
    assert missing.value.kind == "missing guest"
    large = structs.replace(guest, flavor=LARGER)
    other = new_id()
    two.ask(Receive(guest=large, source="one", slot=slot, start=False, reach=one.reach()))
    aside(two, large, other)
    with pytest.raises(HostFailed, match="disks do not shrink"):
        one.ask(Receive(guest=smaller, source="two", slot=other, start=False, reach=two.reach()))
    for agent, where in ((one, slot), (two, other)):
        agent.ask(Destroy(guest_id=guest.id))
        agent.ask(Discard(guest_id=guest.id, slot=where))
    assert hosts.files(one) == hosts.files(two) == []


def test_a_spawn_beside_a_slot_leaves_it_alone(hosts: Pair) -> None:
    one = hosts.one
    guest, slot = hosts.boot(one), new_id()
    aside(one, guest, slot)
    hosts.boot(one, guest)
    one.ask(Park(guest_id=guest.id, slot=slot))
    assert one.power(guest.id) == "running"
    one.ask(Destroy(guest_id=guest.id))
    assert one.slots(guest.id) == [slot]
    one.ask(Discard(guest_id=guest.id, slot=slot))
    assert hosts.files(one) == []


def aside(agent: Agent, guest: Guest, slot: str) -> None:
    agent.ask(PowerOff(guest_id=guest.id))
    assert agent.ask(Park(guest_id=guest.id, slot=slot)).slot == slot


def path_of(agent: Agent, guest: Guest, name: str = "disk") -> Path:
    return agent.instances / guest.id / name


def root_of(hosts: Pair, agent: Agent, guest: Guest) -> formats.Qcow2:
    found = formats.overlay(path_of(agent, guest))
    assert found is not None
    assert Path(found.backing).parent == agent.instances / "_base"
    return found


def sizes(hosts: Pair, agent: Agent, guest: Guest) -> dict[str, int]:
    found = {"disk": root_of(hosts, agent, guest).size}
    for path in (agent.instances / guest.id).glob("disk.*"):
        found[path.name] = path.stat().st_size
    return found


def test_taken_back_from_a_host_that_died(hosts: Pair) -> None:
    """What that one had it removes when it is told to, also what was in the way and put aside for it."""
    one, two = hosts.one, hosts.two
    guest, slot = hosts.boot(one, filled_mb=4), new_id()
    aside(one, guest, slot)
    two.ask(Receive(guest=guest, source="one", slot=slot, start=True, reach=one.reach()))
    two.host.cut_power()

    one.ask(Unpark(guest_id=guest.id, slot=slot, start=True))
    two.host.power_on()
    two.start()
    two.ask(Destroy(guest_id=guest.id))
    assert two.guests() == []
    assert two.domains() == {}
    assert hosts.runs(guest) == ["one"]
    assert is_filled(one, guest)
    assert hosts.files(one) == [guest.id]
    one.ask(Destroy(guest_id=guest.id))
    assert hosts.files(two) == []
