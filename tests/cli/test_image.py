"""`kilonova image tiny`: builds an image and uploads it to a running cloud."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from kilonova import tiny
from tests.support.cloud_process import CloudProcess, kilonova
from tests.support.virt_hosts import linux_image


@pytest.fixture(autouse=True)
def _tools() -> None:
    missing = tiny.missing_packages()
    if missing and os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
        pytest.fail(f"missing: {', '.join(missing)}, and KILONOVA_REQUIRE_ALL=1")
    if missing:
        pytest.skip(f"the tiny image is built with {', '.join(missing)}")


def test_tiny_image_boots(tmp_path: Path) -> None:
    disk = tmp_path / "disk.qcow2"
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-b", linux_image(), "-F", "qcow2", str(disk)], check=True
    )
    machine = ["-accel", "tcg", "-machine", "pc", "-m", "256", "-nodefaults", "-display", "none", "-serial", "stdio"]
    drive = f"file={disk},format=qcow2,if=virtio"
    with subprocess.Popen(
        ["qemu-system-x86_64", *machine, "-drive", drive], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as qemu:
        assert qemu.stdout is not None
        try:
            lines = [next(line for line in qemu.stdout if line.startswith(word)) for word in (b"ROOT", b"BOOTED")]
        finally:
            qemu.kill()

    assert b"boots=1" in lines[0]


def test_tiny_image_is_uploaded_and_reproducible(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data") as cloud:
        uploaded = kilonova("image", "tiny", "--data", str(cloud.data), "--name", "small", fresh=True)
        image = cloud.client().get("image", f"/images/{uploaded.stdout.split()[0]}").json()

    assert (image["name"], image["disk_format"], image["status"]) == ("small", "qcow2", "active")
    assert (image["os_hash_algo"], image["os_hash_value"]) == (
        "sha512",
        hashlib.sha512(linux_image().read_bytes()).hexdigest(),
    )
