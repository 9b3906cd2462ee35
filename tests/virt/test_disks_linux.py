"""A Linux guest with disks, a config drive and a guest agent."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
from pathlib import Path

import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.messages import File, Flavor, Image, Key
from tests.hosts.libvirt.support import run_tool, transfer
from tests.support.virt_hosts import Host, linux_image
from tests.virt.disks_support import DiskBench, disk_bench

SHUTDOWN_TIMEOUT_SECONDS = 100.0
# A fake guest agent: prints each command and reports success, except for one unknown user.
SCRIPT = b"""#!/bin/sh
echo "FILE $(cat /config/openstack/content/0000)"
echo "EPHEMERAL $(findfs LABEL=ephemeral0)"
grep -v Filename /proc/swaps
for port in /sys/class/virtio-ports/*; do
    [ "$(cat "$port/name")" = org.qemu.guest_agent.0 ] && exec 3<>"/dev/${port##*/}"
done
while :; do
    while read -r line <&3; do
        echo "ASKED $line"
        case "$line" in
        *guest-sync*) echo "{\\"return\\": $(echo "$line" | sed 's/.*"id": *\\([0-9]*\\).*/\\1/')}" >&3 ;;
        *nobody*) echo '{"error": {"class": "GenericError", "desc": "no such user"}}' >&3 ;;
        *fsfreeze*) echo '{"return": 1}' >&3 ;;
        *) echo '{"return": {}}' >&3 ;;
        esac
    done
    sleep 0.2
done
"""


def test_linux_guest_with_disks_config_drive_and_guest_agent(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            bench.service.put("linux", linux_image().read_bytes())
            image = Image(
                id="linux",
                disk_format="qcow2",
                properties={"hw_qemu_guest_agent": "yes", "os_require_quiesce": "yes", "os_admin_user": "boss"},
            )
            guest_id = await bench.boot(
                image,
                flavor=Flavor(name="linux", vcpus=1, ram_mb=256, disk_gb=1, ephemeral_gb=1),
                config_drive=True,
                hostname="penguin",
                key=Key(name="mine", public_key="ssh-ed25519 AAAA me"),
                metadata={"role": "test"},
                user_data=SCRIPT,
                files=[File(path="/etc/motd", content=b"welcome")],
            )
            metadata = json.loads((await bench.wait_for_output(guest_id, r"CONFIGDRIVE (\{.*\})\r?\n"))[1])
            assert (metadata["uuid"], metadata["hostname"], metadata["meta"]) == (guest_id, "penguin", {"role": "test"})
            assert metadata["public_keys"] == {"mine": "ssh-ed25519 AAAA me"}
            assert metadata["files"] == [{"path": "/etc/motd", "content_path": "/content/0000"}]
            await bench.wait_for_output(guest_id, r"FILE welcome\r?\n")
            await bench.wait_for_output(guest_id, r"EPHEMERAL /dev/vdb")
            await wait_for_agent(bench, guest_id)

            await bench.driver.set_password(guest_id, "", "geheim")
            command = (await bench.wait_for_output(guest_id, r'ASKED (.*"guest-set-user-password".*?)\r?\n'))[1]
            arguments = json.loads(command)["arguments"]
            assert arguments["username"] == "boss"
            assert base64.b64decode(arguments["password"]) == b"geheim"
            with pytest.raises(DriverError, match="no such user") as caught:
                await bench.driver.set_password(guest_id, "nobody", "geheim")
            assert caught.value.kind == "driver"

            await bench.driver.snapshot(guest_id, transfer("snap"))
            await bench.wait_for_output(guest_id, "ASKED .*guest-fsfreeze-thaw")
            printed = re.findall(r"guest-fsfreeze-(\w+)", await bench.console(guest_id))
            assert printed == ["freeze", "thaw"]

            # The power button shuts the guest down long before the timeout.
            assert (await bench.driver.power_off(guest_id, SHUTDOWN_TIMEOUT_SECONDS)).power == "shutdown"
            await bench.wait_for_output(guest_id, "POWERBUTTON")

            # The snapshot has the file system of the second boot.
            snap = tmp_path / "snap"
            snap.write_bytes(bench.service.data["snap"])
            assert boot_count(snap, tmp_path) == "1"
            assert boot_count(linux_image(), tmp_path) == ""

    asyncio.run(scenario())


def boot_count(image: Path, scratch: Path) -> str:
    """How often the tiny Linux has booted from the image, from its file system after a journal replay."""
    disk, root = scratch / "disk", scratch / "root"
    run_tool("qemu-img", "convert", "-O", "raw", image, disk)
    partition = json.loads(run_tool("sfdisk", "-J", disk))["partitiontable"]["partitions"][1]
    with disk.open("rb") as whole:
        whole.seek(partition["start"] * 512)
        root.write_bytes(whole.read(partition["size"] * 512))
    # After a repair the exit status is not 0.
    subprocess.run(["/sbin/e2fsck", "-p", str(root)], check=False, capture_output=True)
    return run_tool("debugfs", "-R", "cat /boots", root).strip()


async def wait_for_agent(bench: DiskBench, guest_id: str) -> None:
    """libvirt sends commands only after the guest has opened the channel."""
    channel = "devices/channel/target[@name='org.qemu.guest_agent.0']"
    async with asyncio.timeout(300):
        while True:
            target = (await bench.domain_xml(guest_id)).find(channel)
            assert target is not None
            if target.get("state") == "connected":
                return
            await asyncio.sleep(0.05)
