"""User input cannot inject markup, commands or paths, or read files of the host."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.virt_cloud import RealCloud
from tests.support.virt_hosts import linux_image
from tests.virt.clouds import delete_servers, make_network

HOSTILE_TEXT = "\"'></name><devices/>&lt; $(touch /tmp/kilonova-attack) `id` %s ../../etc \\ é \N{ROBOT FACE}"
SECRET = "a file that no user may read"


@pytest.fixture
def cloud(long_timeouts: RealCloud) -> RealCloud:
    return long_timeouts


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secret") / "secret"
    path.write_bytes(SECRET.encode().ljust(1 << 20, b"\n"))
    return path


def test_user_text_is_not_interpreted(cloud: RealCloud) -> None:
    image = cloud.image("tiny", linux_image().read_bytes(), "qcow2")
    network = make_network(cloud, HOSTILE_TEXT, "10.50.0.0/24")
    server = cloud.boot(
        HOSTILE_TEXT,
        image,
        flavorRef=cloud.flavor("linux <&> $(id)", ram=192),
        networks=[{"uuid": network}],
        metadata={"a.b-c_d": HOSTILE_TEXT, "k": "]]><x/>\n"},
        user_data=base64.b64encode(b"\0\xff" + HOSTILE_TEXT.encode()).decode(),
        config_drive=True,
        tags=["<tag>"],
    )
    metadata = json.loads(cloud.wait_for_output(server, r"CONFIGDRIVE (\{.*\})\r?\n").group(1))
    assert (metadata["name"], metadata["meta"]["a.b-c_d"], metadata["meta"]["k"]) == (
        HOSTILE_TEXT,
        HOSTILE_TEXT,
        "]]><x/>\n",
    )
    assert json.loads(cloud.wait_for_output(server, r"METADATA (\{.*\})\r?\n").group(1))["name"] == HOSTILE_TEXT
    renamed = cloud.client().put("compute", f"/servers/{server}", {"server": {"name": HOSTILE_TEXT[::-1]}})
    assert renamed.status == 200
    cloud.server_action(server, "createImage", {"name": HOSTILE_TEXT, "metadata": {"a": HOSTILE_TEXT}})
    cloud.wait(server, "ACTIVE")
    cloud.server_action(server, "reboot", {"type": "HARD"})
    cloud.wait(server, "ACTIVE")
    assert not Path("/tmp/kilonova-attack").exists()
    delete_servers(cloud, server)


@pytest.mark.parametrize(
    "properties",
    [
        {"hw_machine_type": "pc' /><devices><disk/>"},
        {"hw_machine_type": "../../etc/passwd"},
        {"hw_machine_type": "q35,accel=kvm"},
        {"hw_machine_type": "none"},
        {"hw_disk_bus": "<x>"},
        {"hw_disk_bus": "virtio\n"},
        {"hw_vif_model": "virtio'/><source dev='eth0"},
        {"hw_video_model": "vga' heads='9"},
        {"hw_cpu_sockets": "99999999999999999999"},
        {"hw_cpu_cores": "²"},
        {"hw_scsi_model": "x"},
    ],
)
def test_invalid_hardware_properties_are_refused(cloud: RealCloud, properties: dict[str, str]) -> None:
    image = cloud.image(str(properties), cloud.site.micro_image().read_bytes(), **properties)
    _assert_refused(cloud, image)


def test_images_with_references_to_other_files_are_refused(cloud: RealCloud, secret: Path, tmp_path: Path) -> None:
    def create_image(name: str, *options: str) -> bytes:
        path = tmp_path / name
        subprocess.run(["qemu-img", "create", "-q", *options, str(path), "1M"], check=True)
        return path.read_bytes()

    backed = create_image("backed", "-f", "qcow2", "-b", str(secret), "-F", "raw")
    split = create_image("split", "-f", "qcow2", "-o", f"data_file={tmp_path / 'elsewhere'},data_file_raw=on")
    split = split.replace(
        str(tmp_path / "elsewhere").encode(), str(secret).encode().ljust(len(str(tmp_path / "elsewhere")), b"\0")
    )
    vmdk = (
        b'# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType="monolithicFlat"\n'
        b'RW 2048 FLAT "' + str(secret).encode() + b'" 0\n'
    )
    plain = create_image("plain", "-f", "qcow2")
    images = {
        "backed": (backed, "qcow2"),
        "split": (split, "qcow2"),
        "claims to be raw": (backed, "raw"),
        "descriptor": (vmdk, "vmdk"),
        "descriptor as raw": (vmdk, "raw"),
        "raw as qcow2": (cloud.site.micro_image().read_bytes(), "qcow2"),
        "qcow2 as vmdk": (plain, "vmdk"),
        "cut": (plain[:60], "qcow2"),
        "nothing": (b"", "qcow2"),
    }
    for name, (data, disk_format) in images.items():
        image = _try_image(cloud, name, data, disk_format)
        if image is not None:
            _assert_refused(cloud, image)
            if not name.startswith("descriptor as raw"):  # a volume is always raw: the descriptor is only text
                _assert_refused(cloud, image, volume=True)


def _try_image(cloud: RealCloud, name: str, data: bytes, disk_format: str) -> str | None:
    """None if the image service refuses the image."""
    try:
        return cloud.image(name, data, disk_format)
    except AssertionError:
        return None


def _assert_refused(cloud: RealCloud, image: str, *, volume: bool = False) -> None:
    """Assert that the boot fails with a reason that shows users no path, and leaves no files."""
    volume_keys: dict[str, Any] = {}
    if volume:
        root = {"boot_index": 0, "uuid": image, "source_type": "image", "destination_type": "volume"}
        volume_keys["block_device_mapping_v2"] = [{**root, "volume_size": 1, "delete_on_termination": True}]
    body = {"name": "hostile", "flavorRef": cloud.flavor("micro"), "networks": "none", "host": "one", **volume_keys}
    if not volume:
        body["imageRef"] = image
    answer = cloud.client().post("compute", "/servers", {"server": body})
    if answer.status == 400:
        return
    assert answer.status == 202, answer.body
    server = answer.json()["server"]["id"]
    shown = cloud.wait(server, "ERROR")
    assert cloud.hosts_running(server) == []
    fault = json.dumps(shown["fault"])
    assert shown["fault"]["message"]
    if volume:
        assert re.search("The volume service (says: create volume|refused): .", shown["fault"]["message"]), fault
    assert SECRET not in fault
    assert "/etc/passwd" not in shown["fault"]["message"]
    assert "Traceback" not in fault
    delete_servers(cloud, server)
