"""Metadata documents of guests, and config drives."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts.drivers.libvirt import config_drive, metadata
from kilonova.hosts.messages import (
    File,
    Flavor,
    Guest,
    Image,
    Key,
    LocalDisk,
    Nic,
    WiredNetwork,
    WiredPort,
    WiredSubnet,
)
from tests.hosts import support
from tests.hosts.libvirt.support import require_tools, run_tool

ID = "0123abcd-0000-4000-8000-000000000001"
NICS = [
    Nic(port_id="11111111-2222", mac="fa:16:3e:00:00:01", network_id="net-1", addresses=["10.0.0.5"], tag="front"),
    Nic(port_id="33333333-4444", mac="fa:16:3e:00:00:02", network_id="net-2", addresses=["192.168.9.7", "2001:db8::7"]),
]
NETWORKS = [
    WiredNetwork(
        id="net-1",
        mtu=1450,
        subnets=[WiredSubnet(id="s1", cidr="10.0.0.0/24", gateway="10.0.0.1", dns=["10.0.0.2"])],
        ports=[WiredPort(id="11111111-2222", guest_id=ID, mac="fa:16:3e:00:00:01", addresses=["10.0.0.5"])],
        floating=[("203.0.113.9", "10.0.0.5"), ("203.0.113.10", "10.0.0.6")],
    ),
    WiredNetwork(
        id="net-2",
        mtu=1400,
        subnets=[
            WiredSubnet(
                id="s2",
                cidr="192.168.8.0/23",
                gateway="192.168.8.1",
                dhcp=False,
                dns=["10.0.0.2", "9.9.9.9"],
                routes=[("10.9.0.0/16", "192.168.8.2")],
            ),
            WiredSubnet(id="s3", cidr="2001:db8::/64", gateway="2001:db8::1"),
        ],
    ),
]


def a_guest(**more: Any) -> Guest:
    facts: dict[str, Any] = {
        "name": "web 1",
        "hostname": "web-1",
        "project_id": "project-1",
        "flavor": Flavor(name="m1.tiny", vcpus=1, ram_mb=64, disk_gb=1, ephemeral_gb=1, swap_mb=64),
        "image": Image(id="fedcba98-0000-4000-8000-000000000002"),
        "nics": NICS,
        "disks": [support.disk("vol-1", device="/dev/vdd", tag="data")],
        "key": Key(name="mine", public_key="ssh-ed25519 AAAA me"),
        "metadata": {"role": "web"},
        "user_data": b"#!/bin/sh\n\xff\x00",
        "availability_zone": "north",
        "launch_index": 2,
        "reservation_id": "r-12345678",
    }
    return support.guest(ID, **facts | more)


def make_documents(guest: Guest | None = None, **more: Any) -> metadata.Documents:
    return metadata.documents(guest or a_guest(), NETWORKS, **more)


def meta_data(version: str = "latest", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(make_documents(**more)[f"openstack/{version}/meta_data.json"])
    return found


def list_names(path: str) -> list[str]:
    answer = metadata.find_document(make_documents(), path)
    assert answer is not None
    return answer.decode().split("\n")


def test_meta_data_describes_the_guest() -> None:
    found = meta_data()
    seed = base64.b64decode(found.pop("random_seed"))
    assert len(seed) == 512
    assert found == {
        "uuid": ID,
        "name": "web 1",
        "hostname": "web-1",
        "launch_index": 2,
        "availability_zone": "north",
        "project_id": "project-1",
        "public_keys": {"mine": "ssh-ed25519 AAAA me"},
        "keys": [{"name": "mine", "type": "ssh", "data": "ssh-ed25519 AAAA me"}],
        "meta": {"role": "web"},
        "devices": [
            {"type": "nic", "bus": "pci", "mac": "fa:16:3e:00:00:01", "tags": ["front"]},
            {"type": "disk", "bus": "pci", "serial": "vol-1", "path": "/dev/vdd", "tags": ["data"]},
        ],
        "dedicated_cpus": [],
    }
    assert base64.b64decode(meta_data()["random_seed"]) != seed


def test_meta_data_without_key_metadata_and_user_data() -> None:
    plain = a_guest(key=None, metadata={}, user_data=None)
    found = make_documents(plain)
    assert {"public_keys", "keys", "meta", "admin_pass"}.isdisjoint(
        json.loads(found["openstack/latest/meta_data.json"])
    )
    assert not any(path.endswith(("user_data", "user-data")) for path in found)
    assert not any("public-keys" in path for path in found)


FILES = [
    File(path="/etc/motd", content=b"hello\n\xff\x00"),
    File(path="etc/empty", content=b""),
    File(path="/etc/issue", content=b"hello\n\xff\x00"),
]


def test_files_are_listed_with_their_content() -> None:
    found = make_documents(a_guest(files=FILES))
    for version in metadata.OPENSTACK_VERSIONS:
        assert json.loads(found[f"openstack/{version}/meta_data.json"])["files"] == [
            {"path": "/etc/motd", "content_path": "/content/0000"},
            {"path": "etc/empty", "content_path": "/content/0001"},
            {"path": "/etc/issue", "content_path": "/content/0002"},
        ]
    for number, file in enumerate(FILES):
        assert metadata.find_document(found, f"/openstack/content/000{number}") == file.content
    assert metadata.find_document(found, "/openstack/content/0003") is None
    assert metadata.find_document(found, "/openstack/content") == b"0000\n0001\n0002"
    assert "files" not in meta_data()
    assert metadata.find_document(make_documents(), "/openstack/content") is None


def test_tagged_devices_have_known_addresses() -> None:
    guest = a_guest(local_disks=[LocalDisk(size_mb=10, device="/dev/vdb", tag="scratch")])
    found = json.loads(make_documents(guest, addresses={"vol-1": "0000:00:07.0"})["openstack/latest/meta_data.json"])[
        "devices"
    ]
    assert found[1]["address"] == "0000:00:07.0"
    assert found[2] == {"type": "disk", "bus": "pci", "path": "/dev/vdb", "tags": ["scratch"]}


def test_admin_password_is_included_if_given() -> None:
    assert meta_data(password="new")["admin_pass"] == "new"
    assert "admin_pass" not in meta_data()


def test_each_version_has_its_files_and_keys() -> None:
    found = make_documents()
    by_version = {
        version: {path.split("/")[-1] for path in found if path.startswith(f"openstack/{version}/")}
        for version in metadata.OPENSTACK_VERSIONS
    }
    assert by_version["2012-08-10"] == {"meta_data.json", "user_data"}
    assert "vendor_data.json" in by_version["2013-10-17"]
    assert "network_data.json" not in by_version["2013-10-17"]
    assert by_version["latest"] == {
        "meta_data.json",
        "user_data",
        "vendor_data.json",
        "vendor_data2.json",
        "network_data.json",
    }
    assert "random_seed" not in meta_data("2012-08-10")
    assert "project_id" in meta_data("2015-10-15")
    assert "devices" not in meta_data("2015-10-15")
    assert set(meta_data("2020-10-14")) == set(meta_data("latest"))


def test_network_data() -> None:
    found = json.loads(make_documents()["openstack/latest/network_data.json"])
    assert found["links"] == [
        {
            "id": "tap11111111-22",
            "vif_id": "11111111-2222",
            "type": "bridge",
            "mtu": 1450,
            "ethernet_mac_address": "fa:16:3e:00:00:01",
        },
        {
            "id": "tap33333333-44",
            "vif_id": "33333333-4444",
            "type": "bridge",
            "mtu": 1400,
            "ethernet_mac_address": "fa:16:3e:00:00:02",
        },
    ]
    assert found["networks"][0] == {
        "id": "network0",
        "link": "tap11111111-22",
        "network_id": "net-1",
        "type": "ipv4_dhcp",
    }
    assert found["networks"][1] == {
        "id": "network1",
        "link": "tap33333333-44",
        "network_id": "net-2",
        "type": "ipv4",
        "ip_address": "192.168.9.7",
        "netmask": "255.255.254.0",
        "routes": [
            {"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "192.168.8.1"},
            {"network": "10.9.0.0", "netmask": "255.255.0.0", "gateway": "192.168.8.2"},
        ],
        "services": [{"type": "dns", "address": "10.0.0.2"}, {"type": "dns", "address": "9.9.9.9"}],
    }
    six = found["networks"][2]
    assert (six["type"], six["ip_address"], six["netmask"]) == ("ipv6", "2001:db8::7", "ffff:ffff:ffff:ffff::")
    assert six["routes"] == [{"network": "::", "netmask": "::", "gateway": "2001:db8::1"}]
    assert found["services"] == [{"type": "dns", "address": "10.0.0.2"}, {"type": "dns", "address": "9.9.9.9"}]


def test_network_data_of_an_unknown_network_has_only_the_link() -> None:
    found = metadata.network_data(a_guest(), [])
    assert len(found["links"]) == 2
    assert found["networks"] == found["services"] == []


def test_vendor_data(tmp_path: Path) -> None:
    path = tmp_path / "vendor.json"
    path.write_text('{"mirror": "http://mirror"}')
    vendor = metadata.vendor_data(str(path))
    found = make_documents(vendor=vendor)
    assert json.loads(found["openstack/latest/vendor_data.json"]) == {"mirror": "http://mirror"}
    assert json.loads(found["openstack/latest/vendor_data2.json"]) == {"static": {"mirror": "http://mirror"}}


@pytest.mark.parametrize("content", ["", "[1]", "{", None])
def test_unreadable_vendor_data_is_empty(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "vendor.json"
    if content is not None:
        path.write_text(content)
    assert metadata.vendor_data(str(path)) == {}


def test_ec2_tree() -> None:
    found = make_documents()

    def leaf(path: str) -> str:
        return found[f"2009-04-04/meta-data/{path}"].decode()

    assert leaf("instance-id") == "i-0123abcd"
    assert leaf("ami-id") == "ami-fedcba98"
    assert leaf("ami-launch-index") == "2"
    assert leaf("hostname") == leaf("local-hostname") == leaf("public-hostname") == "web-1"
    assert leaf("local-ipv4") == "10.0.0.5"
    assert leaf("public-ipv4") == "203.0.113.9"
    assert leaf("instance-type") == "m1.tiny"
    assert leaf("reservation-id") == "r-12345678"
    assert leaf("placement/availability-zone") == "north"
    assert leaf("public-keys/0/openssh-key") == "ssh-ed25519 AAAA me"
    assert leaf("block-device-mapping/root") == "/dev/vda"
    assert leaf("block-device-mapping/ami") == "vda"
    assert leaf("block-device-mapping/ephemeral0") == "/dev/vdb"
    assert leaf("block-device-mapping/swap") == "/dev/vdc"
    assert leaf("block-device-mapping/ebs0") == "/dev/vdd"
    assert found["latest/user-data"] == b"#!/bin/sh\n\xff\x00"


def test_ec2_block_devices_of_guest_booted_from_volume() -> None:
    guest = a_guest(image=None, disks=[support.disk("v", device="/dev/vda", boot_index=0)])
    found = make_documents(guest)
    assert found["latest/meta-data/block-device-mapping/root"] == b"/dev/vda"
    assert found["latest/meta-data/ami-id"] == b""


def test_listings() -> None:
    assert list_names("/") == list_names("") == list(metadata.EC2_VERSIONS)
    assert list_names("/openstack") == list_names("/openstack/") == list(metadata.OPENSTACK_VERSIONS)
    assert list_names("/openstack/latest/") == [
        "meta_data.json",
        "network_data.json",
        "user_data",
        "vendor_data.json",
        "vendor_data2.json",
    ]
    assert list_names("/latest") == ["meta-data/", "user-data"]
    top = list_names("/1.0/meta-data/")
    assert {"instance-id", "placement/", "public-keys/", "block-device-mapping/"} <= set(top)
    assert "public-keys" not in top
    assert list_names("/latest/meta-data/public-keys/") == ["0=mine"]
    assert list_names("/latest/meta-data/public-keys/0/") == ["openssh-key"]
    assert list_names("/latest/meta-data/placement") == ["availability-zone"]


@pytest.mark.parametrize(
    "path", ["/nothing", "/latest/meta-data/nothing", "/ec2", "/ec2/latest/meta-data.json", "/lat"]
)
def test_unknown_paths_have_no_document(path: str) -> None:
    assert metadata.find_document(make_documents(), path) is None


def test_config_drive_has_the_same_documents(tmp_path: Path) -> None:
    require_tools("genisoimage", "isoinfo")
    drive = tmp_path / "guest" / "disk.config"
    drive.parent.mkdir()

    def read(path: str) -> str:
        return run_tool("isoinfo", "-J", "-x", path, "-i", drive)

    for _ in range(2):
        asyncio.run(config_drive.build(drive, make_documents(vendor={"mirror": "m"})))
    assert "Volume id: config-2" in run_tool("isoinfo", "-d", "-i", drive)
    assert json.loads(read("/openstack/latest/meta_data.json"))["uuid"] == ID
    assert json.loads(read("/openstack/2012-08-10/meta_data.json"))["hostname"] == "web-1"
    assert json.loads(read("/openstack/latest/network_data.json"))["links"][0]["mtu"] == 1450
    assert json.loads(read("/openstack/latest/vendor_data2.json")) == {"static": {"mirror": "m"}}
    assert json.loads(read("/ec2/2009-04-04/meta-data.json"))["instance-id"] == "i-0123abcd"
    names = run_tool("isoinfo", "-J", "-f", "-i", drive).split()
    assert "/openstack/latest/user_data" in names
    assert not [name for name in names if name.startswith(("/latest", "/1.0"))]
    assert [path.name for path in drive.parent.iterdir()] == ["disk.config"]
    assert drive.stat().st_mode & 0o777 == 0o600


def test_config_drive_has_the_files(tmp_path: Path) -> None:
    require_tools("genisoimage", "isoinfo")
    drive = tmp_path / "disk.config"
    asyncio.run(config_drive.build(drive, make_documents(a_guest(files=FILES))))

    def read(path: str) -> bytes:
        return subprocess.run(["isoinfo", "-J", "-x", path, "-i", drive], check=True, stdout=subprocess.PIPE).stdout

    listed = json.loads(read("/openstack/latest/meta_data.json"))["files"]
    assert [(file["path"], read(f"/openstack{file['content_path']}")) for file in listed] == [
        (file.path, file.content) for file in FILES
    ]


def test_config_drive_stores_equal_files_once(tmp_path: Path) -> None:
    require_tools("genisoimage")
    drive = tmp_path / "disk.config"
    asyncio.run(config_drive.build(drive, make_documents(a_guest(user_data=bytes(range(256)) * 256))))
    assert drive.stat().st_size < 600_000
