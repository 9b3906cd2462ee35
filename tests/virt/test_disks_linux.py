"""A Linux guest finds its disks and its config drive, and somebody in it does what the host asks."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
from pathlib import Path

import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.messages import Flavor, Image, Key
from tests.hosts.libvirt.support import do, transfer
from tests.support.virt_hosts import Host, linux_image
from tests.virt.disks_support import Bench, bench

GRACE_SECONDS = 100.0
# Stands in for the guest agent: says what it was asked, and that it was done. Of one user it says that there is none.
SCRIPT = b"""#!/bin/sh
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


def test_a_linux_guest_has_what_it_was_given(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            place.shelf.put("linux", linux_image().read_bytes())
            image = Image(
                id="linux",
                disk_format="qcow2",
                properties={"hw_qemu_guest_agent": "yes", "os_require_quiesce": "yes", "os_admin_user": "boss"},
            )
            guest_id = await place.boot(
                image,
                flavor=Flavor(name="linux", vcpus=1, ram_mb=256, disk_gb=1, ephemeral_gb=1),
                config_drive=True,
                hostname="penguin",
                key=Key(name="mine", public_key="ssh-ed25519 AAAA me"),
                metadata={"role": "test"},
                user_data=SCRIPT,
            )
            told = json.loads((await place.says(guest_id, r"CONFIGDRIVE (\{.*\})\r?\n"))[1])
            assert (told["uuid"], told["hostname"], told["meta"]) == (guest_id, "penguin", {"role": "test"})
            assert told["public_keys"] == {"mine": "ssh-ed25519 AAAA me"}
            await place.says(guest_id, r"EPHEMERAL /dev/vdb")
            await agent_is_there(place, guest_id)

            await place.driver.set_password(guest_id, "", "geheim")
            asked = (await place.says(guest_id, r'ASKED (.*"guest-set-user-password".*?)\r?\n'))[1]
            arguments = json.loads(asked)["arguments"]
            assert arguments["username"] == "boss"
            assert base64.b64decode(arguments["password"]) == b"geheim"
            with pytest.raises(DriverError, match="no such user") as caught:
                await place.driver.set_password(guest_id, "nobody", "geheim")
            assert caught.value.kind == "driver"

            await place.driver.snapshot(guest_id, transfer("snap"))
            await place.says(guest_id, "ASKED .*guest-fsfreeze-thaw")
            said = re.findall(r"guest-fsfreeze-(\w+)", await place.said(guest_id))
            assert said == ["freeze", "thaw"]

            # It ends in good order when its power button is pressed, long before its power is cut.
            assert (await place.driver.power_off(guest_id, GRACE_SECONDS)).power == "shutdown"
            await place.says(guest_id, "POWERBUTTON")

            # The snapshot knows that its disk was used before.
            snap = tmp_path / "snap"
            snap.write_bytes(place.shelf.data["snap"])
            assert boots_of(snap, tmp_path) == "1"
            assert boots_of(linux_image(), tmp_path) == ""

    asyncio.run(scenario())


def boots_of(image: Path, scratch: Path) -> str:
    """How often the tiny Linux has booted from it, as its file system tells when what is in the journal is done."""
    disk, root = scratch / "disk", scratch / "root"
    do("qemu-img", "convert", "-O", "raw", image, disk)
    partition = json.loads(do("sfdisk", "-J", disk))["partitiontable"]["partitions"][1]
    with disk.open("rb") as whole:
        whole.seek(partition["start"] * 512)
        root.write_bytes(whole.read(partition["size"] * 512))
    # Its exit status tells that something was mended.
    subprocess.run(["/sbin/e2fsck", "-p", str(root)], check=False, capture_output=True)
    return do("debugfs", "-R", "cat /boots", root).strip()


async def agent_is_there(place: Bench, guest_id: str) -> None:
    """Libvirt asks nobody before it has been told that somebody in the guest has opened the channel."""
    channel = "devices/channel/target[@name='org.qemu.guest_agent.0']"
    async with asyncio.timeout(300):
        while True:
            target = (await place.document(guest_id)).find(channel)
            assert target is not None
            if target.get("state") == "connected":
                return
            await asyncio.sleep(0.05)
