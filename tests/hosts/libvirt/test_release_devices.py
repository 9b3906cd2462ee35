"""Devices of guests that do not run on the host any more: ports, shares and connections to volumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import hypervisor as hypervisors
from kilonova.hosts.drivers.libvirt import live_migration, nics, plug
from kilonova.hosts.drivers.libvirt import migration_records as records
from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor
from kilonova.hosts.drivers.libvirt.migration_records import OutgoingGuest
from kilonova.hosts.drivers.libvirt.volume_connections import Record
from kilonova.hosts.drivers.libvirt.volumes import Volumes
from kilonova.hosts.messages import Guest, Nic
from tests.hosts import support
from tests.hosts.libvirt.test_disk_transfer import GUEST, SLOT, hypervisor
from tests.support import run

NIC = Nic(port_id="p", mac="fa:16:3e:00:00:01", network_id="n", vif_type="ovs", vif_details={"bridge_name": "br-int"})


class Host:
    """A host without a domain of its guest. `released` are the ports and volumes that it has released."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hv = hypervisor(directory)
        self.hv.volumes = Volumes(self.hv)
        self.guest = msgspec.structs.replace(support.guest(GUEST), nics=[NIC])
        self.hv.set_owner(GUEST)
        self.hv.write_spec(self.guest)
        self.released: list[Any] = []
        connections = self.hv.volumes.connections
        connections._write(Record(GUEST, "v", {"driver_volume_type": "nfs", "data": {}}, {"path": "/x"}))

        async def request(verb: str, record: Record, **options: Any) -> None:
            self.released.append(record.volume_id)

        async def unplug(hv: Hypervisor, guest: Guest, nics: list[Nic]) -> None:
            self.released.append(guest.nics)

        async def find_domain(guest_id: str) -> None:
            return None

        monkeypatch.setattr(connections, "_request", request)
        monkeypatch.setattr(plug, "unplug", unplug)
        monkeypatch.setattr(self.hv, "find_domain", find_domain)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path / "one", monkeypatch)


def let_destination_take_over(host: Host) -> Guest:
    """Write the files that another host on the same storage writes when the guest has arrived there."""
    directory = host.hv.layout.guest_directory(GUEST)
    other = msgspec.structs.replace(NIC, vif_details={"ovs_hybrid_plug": True})
    there = msgspec.structs.replace(host.guest, nics=[other])
    host.hv.write_spec(there)
    hypervisors.write_file(directory / "owner", b"two")
    return there


def test_source_releases_devices_of_a_guest_that_has_left(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """On shared storage the destination owns the files as soon as the guest has arrived."""
    outgoing = OutgoingGuest(slot=SLOT, destination="two", shared=True, running=True)

    async def confirm(*args: Any) -> bool:
        let_destination_take_over(host)
        return True

    monkeypatch.setattr(records, "try_confirm_arrival", confirm)
    run(live_migration._finish_at_source(host.hv, host.guest, outgoing))
    # The ports have the binding that they had on this host.
    assert host.released == [[NIC], "v"]
    assert host.hv.owner(GUEST) == "two"


def test_repeated_migration_releases_devices(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent ended after the guest had left, before it released the devices."""
    there = let_destination_take_over(host)

    async def is_at_destination(*args: Any) -> bool:
        return True

    async def no_progress(*args: Any) -> None:
        return None

    monkeypatch.setattr(records, "is_at_destination", is_at_destination)
    monkeypatch.setattr(live_migration, "progress", no_progress)
    run(live_migration.migrate_live(host.hv, GUEST, "two", SLOT, None, {}))
    assert host.released == [there.nics, "v"]


def test_devices_of_a_guest_that_comes_back_stay(host: Host) -> None:
    let_destination_take_over(host)
    host.hv.set_owner(GUEST, SLOT)
    incoming = records.IncomingGuest(slot=SLOT, source="two", shared=True)
    records.write_record(host.hv.layout.slot_directory(GUEST, SLOT) / records.INCOMING_FILE, incoming)
    run(records.complete_departure(host.hv, GUEST))
    assert host.released == []


def test_failed_release_does_not_stop_the_others(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*args: Any) -> None:
        raise DriverError("Open vSwitch does not respond")

    monkeypatch.setattr(plug, "unplug", fail)
    with pytest.raises(DriverError, match="Open vSwitch does not respond"):
        run(host.hv.release_devices(GUEST))
    assert host.released == ["v"]


def test_ports_are_left_alone_without_os_vif(host: Host, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(plug, "os_vif_problem", lambda: "os-vif is missing")
    run(plug.unplug(host.hv, host.guest, [NIC]))
    assert "port p is not unplugged: os-vif is missing" in caplog.text
    with pytest.raises(DriverError, match="os-vif is missing"):
        run(plug.plug(host.hv, host.guest, [NIC]))


def test_interrupted_attach_of_a_port_is_undone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def power(guest_id: str) -> str:
        return "running"

    async def killed(hv: Hypervisor, guest: Guest, nic: Nic) -> None:
        raise KeyboardInterrupt

    async def nothing(*args: Any) -> None:
        return None

    second = msgspec.structs.replace(NIC, port_id="q", mac="fa:16:3e:00:00:02")
    monkeypatch.setattr(host.hv, "power", power)
    monkeypatch.setattr(nics, "_attach_live", killed)
    monkeypatch.setattr(nics, "_detach_live", nothing)
    with pytest.raises(KeyboardInterrupt):
        run(nics.attach(host.hv, GUEST, second))
    run(nics.detach(host.hv, GUEST, "q"))
    assert host.released == [[NIC, second]]
    assert host.hv.spec(GUEST).nics == [NIC]
