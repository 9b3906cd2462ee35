"""Networks, interfaces, volumes and metadata of Linux guests across a live migration, and the VNC console."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import urllib.request
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.virt_cloud import RealCloud
from tests.support.virt_hosts import CONSOLE_LOG_BYTES, linux_image, wait_until
from tests.virt.clouds import CONSOLE_URL_SECONDS, OpenstackClient, make_network

VNC_GREETING = b"RFB 003.008\n"
PERMITTED_PORT, BLOCKED_PORT = 7001, 7002
# Prints one line per round: the second interface, the volume (the only disk of 2 GiB), the metadata, and whether it can
# post its password. The round is written to the volume and read back from the disk. The second interface gets an
# address but no routes. A request that is open during the migration gets no reply, because the metadata service of the
# new host does not know the connection.
MOVER_SCRIPT = f"""#!/bin/sh
for port in {PERMITTED_PORT} {BLOCKED_PORT}; do (while :; do nc -l -p $port -e /bin/date; done) & done
printf '#!/bin/sh\\n[ "$1" = bound ] && ip addr add $ip/24 dev $interface && echo "LEASE $ip" >/dev/console' >/lease
chmod +x /lease
round=0 leased=
while :; do
    round=$((round + 1)) volume=none
    if [ -e /sys/class/net/eth1 ]; then
        [ "$leased" ] || (ip link set eth1 up; udhcpc -i eth1 -q -n -t 20 -T 1 -s /lease >/dev/null 2>&1)
        card=attached leased=yes
    else
        card=none leased=
    fi
    for disk in /sys/block/*; do
        [ "$(cat $disk/size)" = 4194304 ] || continue
        printf '%08d' $round | dd of=/dev/${{disk##*/}} bs=8 conv=fsync 2>/dev/null
        echo 3 >/proc/sys/vm/drop_caches
        volume=$(dd if=/dev/${{disk##*/}} bs=8 count=1 2>/dev/null)
    done
    printf 'GET /openstack/latest/meta_data.json HTTP/1.0\\r\\n\\r\\n' |
        timeout 30 nc -w 10 169.254.169.254 80 >/tmp/response
    case "$(head -n 1 /tmp/response)" in *" 200 "*) answer=good ;; *) answer=bad ;; esac
    printf 'POST /openstack/latest/password HTTP/1.0\\r\\nContent-Length: 8\\r\\n\\r\\nc2VhbGVk' |
        timeout 30 nc -w 10 169.254.169.254 80 >/tmp/response
    echo "MOVES $round card=$card volume=$volume metadata=$answer password=$(head -n 1 /tmp/response | cut -d ' ' -f 2)"
    sleep 1
done
"""
WATCHER_SCRIPT = f"""#!/bin/sh
head -c 75000 /dev/zero | tr '\\0' x | fold -w 99
echo FILLED
round=0
while :; do
    round=$((round + 1))
    if ping -c 1 -W 3 $ADDRESS >/dev/null 2>&1; then ping=yes; else ping=no; fi
    for port in {PERMITTED_PORT} {BLOCKED_PORT}; do
        eval port$port=shut
        timeout 10 nc -w 1 $ADDRESS $port </dev/null 2>/dev/null | grep -q : && eval port$port=open
    done
    echo "WATCHES $round ping=$ping permitted=$port{PERMITTED_PORT} blocked=$port{BLOCKED_PORT}"
    sleep 1
done
"""
PINGER_SCRIPT = """#!/bin/sh
while :; do
    if ping -c 1 -W 1 $ADDRESS >/dev/null 2>&1; then echo "REACHED $ADDRESS"; else echo "NO REPLY FROM $ADDRESS"; fi
    sleep 1
done
"""
CONNECTED = "ping=yes permitted=open blocked=shut"


@pytest.fixture
def cloud(long_timeouts: RealCloud) -> RealCloud:
    return long_timeouts


def test_networks_interfaces_and_volumes_of_linux_guests_across_a_migration(
    cloud: RealCloud, openstack: OpenstackClient
) -> None:
    first, second = make_network(cloud, "first", "10.50.0.0/24"), make_network(cloud, "second", "10.60.0.0/24")
    tcp = {"protocol": "tcp", "port_range_min": PERMITTED_PORT, "port_range_max": PERMITTED_PORT}
    permitted = ({"protocol": "icmp"}, tcp)
    open_group, closed_group = _group(cloud, "open", *permitted), _group(cloud, "closed")
    port = _port(cloud, first, closed_group)
    address = port["fixed_ips"][0]["ip_address"]
    mover = _boot(cloud, "mover", port["id"], MOVER_SCRIPT)
    watcher = _boot(
        cloud, "watcher", _port(cloud, first, open_group)["id"], WATCHER_SCRIPT.replace("$ADDRESS", address)
    )
    metadata = {"config_drive": True, "metadata": {"colour": "green"}}
    pinger_script = PINGER_SCRIPT.replace("$ADDRESS", address)
    distant = _port(cloud, second, open_group)
    far = _boot(cloud, "far", distant["id"], pinger_script, **metadata)
    for server in (mover, watcher, far):
        cloud.wait(server, "ACTIVE")

    # Each guest gets its own metadata.
    assert cloud.client().get("network", f"/ports/{distant['id']}").json()["port"]["status"] == "ACTIVE"
    for source in ("CONFIGDRIVE", "METADATA"):
        found = json.loads(cloud.wait_for_output(far, rf"{source} (\{{.*\}})\r?\n").group(1))
        assert (found["uuid"], found["name"], found["meta"]) == (far, "far", {"colour": "green"})
    cloud.wait_for_output(far, f"DHCP eth0 {distant['fixed_ips'][0]['ip_address']}")
    assert json.loads(cloud.wait_for_output(watcher, r"METADATA (\{.*\})\r?\n").group(1))["uuid"] == watcher

    # A guest of the same network is reached as soon as the security group permits it.
    cloud.wait_for_output(watcher, r"WATCHES \d+ ping=no permitted=shut blocked=shut")
    _permit(cloud, closed_group, *permitted)
    cloud.wait_for_output(watcher, f"WATCHES \\d+ {CONNECTED}")
    cloud.wait_for_output(far, f"NO REPLY FROM {address}")
    assert f"REACHED {address}" not in cloud.console_output(far)
    openstack("server delete --wait far")

    openstack("volume create --size 2 data")
    cloud.wait_for_output(watcher, "FILLED")
    log_files = list((cloud.instances_path(cloud.host_of(watcher)) / watcher).glob("console.log*"))
    assert len(log_files) >= 3
    assert all(file.stat().st_size <= CONSOLE_LOG_BYTES for file in log_files)
    cloud.wait_for_output(mover, r"MOVES \d+ card=none volume=none metadata=good password=200")
    password = f"/servers/{mover}/os-server-password"
    wait_until(
        lambda: cloud.client().get("compute", password).json()["password"] == "c2VhbGVk", "the password is stored"
    )

    added = _port(cloud, second, open_group)
    openstack(f"server add port mover {added['id']}")
    cloud.wait_for_output(mover, f"LEASE {added['fixed_ips'][0]['ip_address']}")
    tap = f"knt{added['id'].replace('-', '')[:12]}"
    host = cloud.hosts[cloud.host_of(mover)]
    assert tap in host.execute("ip", "-br", "link")
    openstack(f"server remove port mover {added['id']}")
    cloud.wait_for_output(mover, r"(?s)card=attached.*card=none")
    wait_until(lambda: tap not in host.execute("ip", "-br", "link"), "the tap device is removed")

    openstack("server add volume mover data")
    cloud.wait_for_output(mover, r"volume=0\d+ metadata=good")
    before, seen = cloud.host_of(mover), _last_round(cloud, watcher)
    openstack("server migrate --live-migration --wait mover")
    cloud.wait(mover, "ACTIVE")
    assert cloud.host_of(mover) != before
    assert cloud.hosts_running(mover) == [cloud.host_of(mover)]

    # Connections resume soon, and nothing forbidden was open meanwhile. The guests wait only
    # a second for replies, which a busy machine may exceed.
    _wait_for_new_round(cloud, mover, r"card=none volume=0*\1 metadata=good password=409")
    _wait_for_new_round(cloud, watcher, CONNECTED)
    rounds = re.findall(r"WATCHES (\d+) (.*)\n", cloud.console_output(watcher))
    assert all(result.endswith("blocked=shut") for _, result in rounds)
    assert sum("ping=no" in result for number, result in rounds if int(number) > seen) <= 10
    assert cloud.console_output(mover).count("BOOTED") == 1

    assert cloud.client().delete("compute", password).status == 204
    cloud.wait_for_output(mover, r"(?s)password=409.*password=200")
    openstack("server remove volume mover data")
    cloud.wait_for_output(mover, r"(?s)volume=0.*volume=none")
    openstack("server delete --wait mover watcher")
    cloud.wait_until_clean()


def test_vnc_console(cloud: RealCloud, openstack: OpenstackClient) -> None:
    server = cloud.boot("shown", cloud.micro_image())
    socket = _console_url(openstack)
    assert asyncio.run(_read_vnc_greeting(re.sub("token=.*", "token=made-up", socket))) is None
    with cloud.database() as db:
        (seconds,) = db.execute("SELECT expires_at - created_at FROM console_tokens").fetchone()
        assert seconds == pytest.approx(CONSOLE_URL_SECONDS)
        db.execute("UPDATE console_tokens SET expires_at = expires_at - ?", (CONSOLE_URL_SECONDS,))
    assert asyncio.run(_read_vnc_greeting(socket)) is None

    refused = cloud.client().post("compute", f"/servers/{server}/action", {"changePassword": {"adminPass": "secret"}})
    assert refused.status == 409
    assert "guest agent" in refused.json()["conflictingRequest"]["message"]
    openstack("server delete --wait shown")


def test_admin_password_without_guest_agent_fails(cloud: RealCloud) -> None:
    """The image announces a guest agent, but the guest runs none."""
    image = cloud.image("agentless", cloud.site.micro_image("agentless").read_bytes(), hw_qemu_guest_agent="yes")
    server = cloud.boot("agentless", image)
    cloud.server_action(server, "changePassword", {"adminPass": "secret"})
    cloud.wait(server, "ACTIVE")
    path = f"/servers/{server}/os-instance-actions"
    request = cloud.client().get("compute", path).json()["instanceActions"][0]["request_id"]
    action = cloud.client().get("compute", f"{path}/{request}").json()["instanceAction"]
    assert (action["action"], action["message"]) == ("changePassword", "Error")
    (failed,) = [event for event in action["events"] if event["result"] == "Error"]
    assert "no guest agent" in failed["details"]
    assert "the guest agent of" in failed["traceback"]
    cloud.client().delete("compute", f"/servers/{server}")
    cloud.wait_until_deleted(server)


def _console_url(openstack: OpenstackClient) -> str:
    """A console URL whose VNC server has responded."""
    url = openstack("console url show shown -f value -c url").strip()
    with urllib.request.urlopen(url, timeout=60) as page:
        assert page.status == 200
        assert b"noVNC" in page.read()
    parts = urlsplit(url)
    socket = f"ws://{parts.netloc}/{parse_qs(parts.query)['path'][0]}"
    assert asyncio.run(_read_vnc_greeting(socket)) == VNC_GREETING
    return socket


async def _read_vnc_greeting(url: str) -> bytes | None:
    """The VNC server's first message; None if the proxy refuses the connection."""
    try:
        async with asyncio.timeout(60), connect(url, compression=None, proxy=None) as socket:
            greeting = await socket.recv()
            assert isinstance(greeting, bytes)
            return greeting
    except InvalidStatus:
        return None


def _wait_for_new_round(cloud: RealCloud, server: str, words: str) -> None:
    """Wait until the guest prints the words in a new round."""
    number = _last_round(cloud, server) + 1

    def has_later_round(output: str) -> bool:
        return any(int(found) > number for found in re.findall(rf"(?:MOVES|WATCHES) (\d+) {words}", output))

    cloud.wait_for_console(server, has_later_round, f"{words} after round {number}")


def _last_round(cloud: RealCloud, server: str) -> int:
    """The guest's last round."""
    return int(re.findall(r"(?:MOVES|WATCHES) (\d+) ", cloud.console_output(server))[-1])


def _boot(cloud: RealCloud, name: str, port: str, script: str, **keys: Any) -> str:
    image = cloud.image("tiny", linux_image().read_bytes(), "qcow2")
    user_data = base64.b64encode(script.encode()).decode()
    ports = [{"port": port}]
    flavor = cloud.flavor("linux", ram=192)
    return cloud.boot(name, image, wait=False, flavorRef=flavor, networks=ports, user_data=user_data, **keys)


def _group(cloud: RealCloud, name: str, *rules: dict[str, Any]) -> str:
    made = cloud.client().post("network", "/security-groups", {"security_group": {"name": name}})
    group = str(made.json()["security_group"]["id"])
    _permit(cloud, group, *rules)
    return group


def _permit(cloud: RealCloud, group: str, *rules: dict[str, Any]) -> None:
    for rule in rules:
        body = {"security_group_id": group, "direction": "ingress", "ethertype": "IPv4", **rule}
        assert cloud.client().post("network", "/security-group-rules", {"security_group_rule": body}).status == 201


def _port(cloud: RealCloud, network: str, group: str) -> dict[str, Any]:
    body = {"network_id": network, "security_groups": [group]}
    made: dict[str, Any] = cloud.client().post("network", "/ports", {"port": body}).json()["port"]
    return made
