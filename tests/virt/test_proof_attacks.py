"""What users write reaches real hosts as what it is: neither markup nor a command, a path, or somebody else's file."""

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
from tests.virt.clouds import delete, make_network

EVIL = "\"'></name><devices/>&lt; $(touch /tmp/kilonova-attack) `id` %s ../../etc \\ é \N{ROBOT FACE}"
SECRET = "what no user may read"


@pytest.fixture
def cloud(long_timeouts: RealCloud) -> RealCloud:
    return long_timeouts


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secret") / "secret"
    path.write_bytes(SECRET.encode().ljust(1 << 20, b"\n"))
    return path


def test_words_stay_words(cloud: RealCloud) -> None:
    image = cloud.image("tiny", linux_image().read_bytes(), "qcow2")
    network = make_network(cloud, EVIL, "10.50.0.0/24")
    server = cloud.boot(
        EVIL,
        image,
        flavorRef=cloud.flavor("linux <&> $(id)", ram=192),
        networks=[{"uuid": network}],
        metadata={"a.b-c_d": EVIL, "k": "]]><x/>\n"},
        user_data=base64.b64encode(b"\0\xff" + EVIL.encode()).decode(),
        config_drive=True,
        tags=["<tag>"],
    )
    told = json.loads(cloud.says(server, r"CONFIGDRIVE (\{.*\})\r?\n").group(1))
    assert (told["name"], told["meta"]["a.b-c_d"], told["meta"]["k"]) == (EVIL, EVIL, "]]><x/>\n")
    assert json.loads(cloud.says(server, r"METADATA (\{.*\})\r?\n").group(1))["name"] == EVIL
    renamed = cloud.client().put("compute", f"/servers/{server}", {"server": {"name": EVIL[::-1]}})
    assert renamed.status == 200
    cloud.act(server, "createImage", {"name": EVIL, "metadata": {"a": EVIL}})
    cloud.wait(server, "ACTIVE")
    cloud.act(server, "reboot", {"type": "HARD"})
    cloud.wait(server, "ACTIVE")
    assert not Path("/tmp/kilonova-attack").exists()
    delete(cloud, server)


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
def test_hardware_that_there_is_not(cloud: RealCloud, properties: dict[str, str]) -> None:
    image = cloud.image(str(properties), cloud.site.micro_image().read_bytes(), **properties)
    _is_refused(cloud, image)


def test_images_that_lead_elsewhere(cloud: RealCloud, secret: Path, tmp_path: Path) -> None:
    def made(name: str, *options: str) -> bytes:
        path = tmp_path / name
        subprocess.run(["qemu-img", "create", "-q", *options, str(path), "1M"], check=True)
        return path.read_bytes()

    backed = made("backed", "-f", "qcow2", "-b", str(secret), "-F", "raw")
    split = made("split", "-f", "qcow2", "-o", f"data_file={tmp_path / 'elsewhere'},data_file_raw=on")
    split = split.replace(
        str(tmp_path / "elsewhere").encode(), str(secret).encode().ljust(len(str(tmp_path / "elsewhere")), b"\0")
    )
    vmdk = (
        b'# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType="monolithicFlat"\n'
        b'RW 2048 FLAT "' + str(secret).encode() + b'" 0\n'
    )
    plain = made("plain", "-f", "qcow2")
    evil = {
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
    for name, (data, disk_format) in evil.items():
        image = _try_image(cloud, name, data, disk_format)
        if image is not None:
            _is_refused(cloud, image)
            if not name.startswith("descriptor as raw"):  # a volume is raw for everybody: there it is only text
                _is_refused(cloud, image, volume=True)


def _try_image(cloud: RealCloud, name: str, data: bytes, disk_format: str) -> str | None:
    """None if the image service does not take it."""
    try:
        return cloud.image(name, data, disk_format)
    except AssertionError:
        return None


def _is_refused(cloud: RealCloud, image: str, *, volume: bool = False) -> None:
    """With a reason, of which users see no path; and nothing is left of it."""
    more: dict[str, Any] = {}
    if volume:
        root = {"boot_index": 0, "uuid": image, "source_type": "image", "destination_type": "volume"}
        more["block_device_mapping_v2"] = [{**root, "volume_size": 1, "delete_on_termination": True}]
    wanted = {"name": "evil", "flavorRef": cloud.flavor("micro"), "networks": "none", "host": "one", **more}
    if not volume:
        wanted["imageRef"] = image
    answer = cloud.client().post("compute", "/servers", {"server": wanted})
    if answer.status == 400:
        return
    assert answer.status == 202, answer.body
    server = answer.json()["server"]["id"]
    shown = cloud.wait(server, "ERROR")
    assert cloud.runs(server) == []
    told = json.dumps(shown["fault"])
    assert shown["fault"]["message"]
    if volume:
        assert re.search("The volume service (says: create volume|refused): .", shown["fault"]["message"]), told
    assert SECRET not in told
    assert "/etc/passwd" not in shown["fault"]["message"]
    assert "Traceback" not in told
    delete(cloud, server)
