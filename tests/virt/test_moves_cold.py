"""Cold migration and resize through slots."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from kilonova.hosts.drivers.libvirt import formats
from kilonova.hosts.messages import Flavor, Guest, LocalDisk
from kilonova.hosts.messages.verbs import Destroy, Discard, Park, PowerOff, PowerOn, Receive, Unpark
from kilonova.hosts.transport import HostRefused
from kilonova.ids import new_id
from tests.support.standalone_agent import StandaloneAgent
from tests.support.virt_hosts import wait_until
from tests.virt.move_support import TICKET, HostPair, is_filled, make_guest

GIB = 1 << 30
LARGER_FLAVOR = Flavor(name="larger", vcpus=1, ram_mb=96, disk_gb=2, ephemeral_gb=0, swap_mb=0)


@pytest.fixture(params=["local_pair", "shared_pair"])
def hosts(request: pytest.FixtureRequest) -> HostPair:
    found: HostPair = request.getfixturevalue(request.param)
    return found


def test_migrate_and_confirm(hosts: HostPair) -> None:
    one, two = hosts.one, hosts.two
    guest, slot = hosts.boot(one, make_guest(config_drive=True), filled_mb=4), new_id()
    park(one, guest, slot)
    assert one.power(guest.id) is None
    assert one.slots(guest.id) == [slot]

    new = structs.replace(guest, flavor=LARGER_FLAVOR)
    receive = Receive(guest=new, source="one", slot=slot, start=True, reach=one.addresses(), ticket=TICKET)
    assert two.call(receive).power == "running"
    two.wait_for_output(guest.id, "TICK 00002")
    assert two.call(receive).power == "running"
    assert root_disk(hosts, two, guest).size == 2 * GIB
    assert is_filled(two, guest)
    assert hosts.hosts_running(guest) == ["two"]
    with pytest.raises(HostRefused) as refused:
        two.call(structs.replace(receive, guest=structs.replace(new, flavor=structs.replace(LARGER_FLAVOR, vcpus=2))))
    assert refused.value.kind == "guest differs"

    one.call(Discard(guest_id=guest.id, slot=slot))
    one.call(Discard(guest_id=guest.id, slot=slot))
    assert one.guests() == []
    # A repeated command succeeds without the source's slot.
    assert two.call(receive).power == "running"
    two.call(PowerOff(guest_id=guest.id))
    two.call(PowerOn(guest_id=guest.id))
    two.call(Destroy(guest_id=guest.id))
    assert hosts.instance_files(one) == hosts.instance_files(two) == []


def test_migrate_and_revert(hosts: HostPair) -> None:
    one, two = hosts.one, hosts.two
    guest, slot, revert_slot = hosts.boot(one), new_id(), new_id()
    park(one, guest, slot)
    two.call(
        Receive(
            guest=structs.replace(guest, flavor=LARGER_FLAVOR),
            source="one",
            slot=slot,
            start=True,
            reach=one.addresses(),
            ticket=TICKET,
        )
    )
    two.wait_for_output(guest.id, "TICK 00001")

    park(two, guest, revert_slot)
    assert one.call(Unpark(guest_id=guest.id, slot=slot, start=True)).power == "running"
    assert one.call(Unpark(guest_id=guest.id, slot=slot, start=True)).power == "running"
    assert root_disk(hosts, one, guest).size == GIB
    assert one.slots(guest.id) == []
    wait_until(lambda: one.ticks(guest.id).count(1) == 2, "the guest has booted again from its old disk")
    two.call(Discard(guest_id=guest.id, slot=revert_slot))
    assert hosts.hosts_running(guest) == ["one"]
    one.call(Destroy(guest_id=guest.id))
    assert hosts.instance_files(one) == hosts.instance_files(two) == []


def test_resize_on_the_same_host_and_revert(hosts: HostPair) -> None:
    one = hosts.one
    local = [LocalDisk(size_mb=8), LocalDisk(size_mb=4, format="swap")]
    guest, slot = hosts.boot(one, make_guest(local_disks=local)), new_id()
    park(one, guest, slot)

    larger_disks = [LocalDisk(size_mb=16), LocalDisk(size_mb=6, format="swap")]
    new = structs.replace(guest, flavor=LARGER_FLAVOR, local_disks=larger_disks)
    one.call(Receive(guest=new, source="one", slot=slot, start=True))
    wait_until(lambda: one.ticks(guest.id), "the guest counts")
    assert sizes(hosts, one, guest) == {"disk": 2 * GIB, "disk.eph0": 16 << 20, "disk.swap": 6 << 20}

    one.call(PowerOff(guest_id=guest.id))
    # The guest in the slot replaces the new one.
    assert one.call(Unpark(guest_id=guest.id, slot=slot, start=False)).power == "shutdown"
    assert sizes(hosts, one, guest) == {"disk": GIB, "disk.eph0": 8 << 20, "disk.swap": 4 << 20}
    one.call(Destroy(guest_id=guest.id))
    assert hosts.instance_files(one) == []


def test_invalid_moves_are_refused(hosts: HostPair) -> None:
    one, two = hosts.one, hosts.two
    guest, slot = hosts.boot(one), new_id()
    with pytest.raises(HostRefused, match="only a stopped guest can be moved to a slot"):
        one.call(Park(guest_id=guest.id, slot=slot, ticket=TICKET))
    with pytest.raises(HostRefused) as empty:
        two.call(Unpark(guest_id=guest.id, slot=slot, start=True))
    assert empty.value.kind == "no such slot"
    with pytest.raises(HostRefused) as nothing:
        two.call(Receive(guest=guest, source="one", slot=slot, start=True, reach=one.addresses(), ticket=TICKET))
    assert nothing.value.kind in ("driver", "guest differs"), "the source has no ticket for it"

    park(one, guest, slot)
    one.call(Park(guest_id=guest.id, slot=slot, ticket=TICKET))
    smaller = structs.replace(guest, flavor=structs.replace(guest.flavor, ram_mb=32))
    with pytest.raises(HostRefused) as missing:
        one.call(Park(guest_id=guest.id, slot=new_id(), ticket=TICKET))
    assert missing.value.kind == "missing guest"
    large = structs.replace(guest, flavor=LARGER_FLAVOR)
    other = new_id()
    two.call(Receive(guest=large, source="one", slot=slot, start=False, reach=one.addresses(), ticket=TICKET))
    park(two, large, other)
    with pytest.raises(HostRefused, match="cannot shrink"):
        one.call(Receive(guest=smaller, source="two", slot=other, start=False, reach=two.addresses(), ticket=TICKET))
    for agent, agent_slot in ((one, slot), (two, other)):
        agent.call(Destroy(guest_id=guest.id))
        agent.call(Discard(guest_id=guest.id, slot=agent_slot))
    assert hosts.instance_files(one) == hosts.instance_files(two) == []


def test_spawn_and_destroy_leave_the_slot_alone(hosts: HostPair) -> None:
    one = hosts.one
    guest, slot = hosts.boot(one), new_id()
    park(one, guest, slot)
    hosts.boot(one, guest)
    one.call(Park(guest_id=guest.id, slot=slot, ticket=TICKET))
    assert one.power(guest.id) == "running"
    one.call(Destroy(guest_id=guest.id))
    assert one.slots(guest.id) == [slot]
    one.call(Discard(guest_id=guest.id, slot=slot))
    assert hosts.instance_files(one) == []


def park(agent: StandaloneAgent, guest: Guest, slot: str) -> None:
    agent.call(PowerOff(guest_id=guest.id))
    assert agent.call(Park(guest_id=guest.id, slot=slot, ticket=TICKET)).slot == slot


def file_path(agent: StandaloneAgent, guest: Guest, name: str = "disk") -> Path:
    return agent.instances / guest.id / name


def root_disk(hosts: HostPair, agent: StandaloneAgent, guest: Guest) -> formats.Qcow2:
    found = formats.read_overlay(file_path(agent, guest))
    assert found is not None
    assert Path(found.backing).parent == agent.instances / "_base"
    return found


def sizes(hosts: HostPair, agent: StandaloneAgent, guest: Guest) -> dict[str, int]:
    found = {"disk": root_disk(hosts, agent, guest).size}
    for path in (agent.instances / guest.id).glob("disk.*"):
        found[path.name] = path.stat().st_size
    return found


def test_revert_after_the_destination_died(hosts: HostPair) -> None:
    """The dead host removes its files when it returns, also those that were set aside for it."""
    one, two = hosts.one, hosts.two
    guest, slot = hosts.boot(one, filled_mb=4), new_id()
    park(one, guest, slot)
    two.call(Receive(guest=guest, source="one", slot=slot, start=True, reach=one.addresses(), ticket=TICKET))
    two.host.cut_power()

    one.call(Unpark(guest_id=guest.id, slot=slot, start=True))
    two.host.power_on()
    two.start()
    two.call(Destroy(guest_id=guest.id))
    assert two.guests() == []
    assert two.domains() == {}
    assert hosts.hosts_running(guest) == ["one"]
    assert is_filled(one, guest)
    assert hosts.instance_files(one) == [guest.id]
    one.call(Destroy(guest_id=guest.id))
    assert hosts.instance_files(two) == []
