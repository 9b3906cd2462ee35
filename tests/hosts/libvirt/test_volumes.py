"""libvirt elements of volumes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import live_disks, volumes
from kilonova.hosts.drivers.libvirt.live_disks import get_location
from kilonova.hosts.messages import Disk
from tests.hosts.libvirt.test_disk_transfer import hypervisor
from tests.support import run

NBD = {"host": "10.0.0.1", "port": 10809, "export": "a-secret"}


def disk(kind: str, data: dict[str, Any], **keys: Any) -> Disk:
    return Disk(volume_id="v-1", connection={"driver_volume_type": kind, "data": data}, **keys)


def text(element: ET.Element) -> str:
    return ET.tostring(element, encoding="unicode")


def test_nbd_volume_is_a_network_disk_that_reconnects() -> None:
    assert text(volumes.disk_element(disk("nbd", NBD), "vdb")) == (
        '<disk type="network" device="disk"><driver name="qemu" type="raw" cache="none" discard="unmap" />'
        '<source protocol="nbd" name="a-secret"><host name="10.0.0.1" port="10809" /><reconnect delay="300" /></source>'
        '<target dev="vdb" bus="virtio" /><serial>v-1</serial></disk>'
    )


def test_nbd_volume_with_tls_requires_certificates(tmp_path: Path) -> None:
    by_tls = disk("nbd", {**NBD, "tls": True})
    assert '<source protocol="nbd" name="a-secret" tls="yes">' in text(volumes.disk_element(by_tls, "vdb"))
    hv = hypervisor(tmp_path)
    volumes.check_tls(hv, [disk("nbd", NBD), disk("rbd", {"tls": True})])
    with pytest.raises(DriverError, match=r"volume v-1 requires TLS, but one has no certificates"):
        volumes.check_tls(hv, [disk("nbd", NBD), by_tls])
    hv.config.libvirt.nbd_tls = True
    volumes.check_tls(hv, [by_tls])


@pytest.mark.parametrize(
    ("kind", "data", "source"),
    [
        ("kilonova_file", {"device_path": "/v/1"}, '<source file="/v/1" />'),
        ("local", {"device_path": "/v/1"}, '<source file="/v/1" />'),
        (
            "rbd",
            {
                "name": "pool/v",
                "hosts": ["10.0.0.1", "[fd::1]"],
                "ports": ["6789", 6790],
                "auth_enabled": True,
                "auth_username": "cinder",
                "secret_uuid": "1111-22",
            },
            '<source protocol="rbd" name="pool/v"><host name="10.0.0.1" port="6789" /><host name="fd::1" port="6790" />'
            '<auth username="cinder"><secret type="ceph" uuid="1111-22" /></auth></source>',
        ),
        ("iscsi", {"device_path": "/dev/sdq", "auth_password": "geheim"}, '<source dev="/dev/sdq" />'),
        ("nfs", {"device_path": __file__}, f'<source file="{__file__}" />'),
        ("fibre_channel", {"device_path": "/dev/sdq"}, '<source dev="/dev/sdq" />'),
    ],
)
def test_source_element_of_other_volume_types(kind: str, data: dict[str, Any], source: str) -> None:
    made = text(volumes.disk_element(disk(kind, data), "vdb"))
    assert source in made
    assert "geheim" not in made


def test_disk_options() -> None:
    made = volumes.disk_element(disk("nbd", NBD, read_only=True, shared=True, bus="scsi", type="lun"), "sdb")
    assert made.get("device") == "lun"
    assert made.find("readonly") is not None
    assert made.find("shareable") is not None
    target = made.find("target")
    assert target is not None
    assert target.attrib == {"dev": "sdb", "bus": "scsi"}
    assert volumes.disk_element(disk("nbd", NBD, type="cdrom"), "hda").find("readonly") is not None
    assert volumes.disk_element(disk("nbd", NBD, type="?"), "vda").get("device") == "disk"


def test_names_are_escaped() -> None:
    wild = "'/><source file='/etc/shadow'/>"
    made = ET.fromstring(text(volumes.disk_element(disk("nbd", {**NBD, "export": wild, "host": wild}), "vda")))
    assert len(made.findall("source")) == 1
    source = made.find("source")
    assert source is not None
    assert source.get("name") == wild


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("nbd", {"host": "h"}, "incomplete"),
        ("nbd", {**NBD, "port": "no number"}, "incomplete"),
        ("rbd", {"name": "p/v", "hosts": ["h"], "ports": []}, "incomplete"),
        ("local", {}, "incomplete"),
        ("fibre_channel", {"target_wwn": "5"}, "not connected"),
        ("", {}, "not connected"),
    ],
)
def test_incomplete_or_unsupported_connection_is_refused(kind: str, data: dict[str, Any], message: str) -> None:
    with pytest.raises(DriverError, match=message):
        volumes.disk_element(disk(kind, data), "vda")


def test_disk_is_identified_by_its_location() -> None:
    one, other = disk("nbd", NBD), disk("nbd", {**NBD, "export": "another"})
    assert volumes.disk_location(one) == get_location(volumes.disk_element(one, "vdc").find("source"))
    assert volumes.disk_location(one) != volumes.disk_location(other)


def test_rbd_volume_uses_the_secret_of_the_host(tmp_path: Path) -> None:
    auth = {"auth_enabled": True, "auth_username": "cinder", "secret_uuid": "1111-22"}
    given = disk("rbd", {"name": "pool/v", "hosts": ["10.0.0.1"], "ports": ["6789"], **auth})
    hv = hypervisor(tmp_path)
    connect = volumes.Volumes(hv)._connect
    assert run(connect("guest", given)) == given
    hv.config.libvirt.rbd_secret_uuid = "3333-44"
    made = text(volumes.disk_element(run(connect("guest", given)), "vdb"))
    assert '<auth username="cinder"><secret type="ceph" uuid="3333-44" /></auth>' in made
    hv.config.libvirt.rbd_user = "kilonova"
    assert '<auth username="kilonova">' in text(volumes.disk_element(run(connect("guest", given)), "vdb"))


@pytest.mark.parametrize(
    ("data", "message"),
    [({"device_path": "/no/such"}, "has no file or device /no/such"), ({"encrypted": True}, "is encrypted")],
)
def test_volume_that_the_host_cannot_have(tmp_path: Path, data: dict[str, Any], message: str) -> None:
    with pytest.raises(DriverError, match=message):
        run(volumes.Volumes(hypervisor(tmp_path))._connect("guest", disk("local", data)))


def test_paths_of_a_saved_domain_are_replaced() -> None:
    def element(name: str, path: str, serial: str) -> str:
        found = f'<disk type="block"><source dev="{path}" index="1" /><target dev="{name}" />'
        return f"{found}<serial>{serial}</serial></disk>" if serial else f"{found}</disk>"

    def domain(*disks: str) -> str:
        return f"<domain><devices>{''.join(disks)}</devices></domain>"

    sources = {
        "v-1": ("/dev/vdb", "block", ET.Element("source", dev="/dev/sdx")),
        # The new volume of a swap, whose disk has the serial number of the old one.
        "v-2": ("/dev/vdc", "block", ET.Element("source", dev="/dev/sdy")),
        "v-3": ("/dev/vdd", "network", ET.Element("source", protocol="nbd")),
    }
    saved = domain(element("vdb", "/dev/sda", "v-1"), element("vdc", "/dev/sdb", "v-old"), element("vda", "/x", ""))
    expected = domain(element("vdb", "/dev/sdx", "v-1"), element("vdc", "/dev/sdy", "v-old"), element("vda", "/x", ""))
    changed = live_disks._replace_paths(saved, sources)
    assert ET.canonicalize(changed) == ET.canonicalize(expected)
    assert live_disks._replace_paths(changed, sources) is changed
    # A disk of the host itself has no serial number.
    own = domain(element("vdb", "/disk.eph0", ""), element("vdd", "/dev/sdb", "v-3"))
    assert live_disks._replace_paths(own, sources) is own
