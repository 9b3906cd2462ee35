"""What is plugged into a running guest and taken along when it moves, as a Linux in it sees it; and its screen."""

from __future__ import annotations

import asyncio
import base64
import re
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.stock_client import forking
from tests.support.virt_cloud import RealCloud, real_cloud
from tests.support.virt_hosts import CONSOLE_BYTES, linux_image, until
from tests.virt.test_proof_lifecycle import Client

LINK_SECONDS = 8
GREETING = b"RFB 003.008\n"
CARRIED, SHUT = 7001, 7002
# One line a round of what it has: the second card, the volume (the one disk of 2 GiB), the metadata, and
# whether it may give its password away. The last round is written to the volume, and read again from the disk itself.
# The second card gets an address, and no routes. A question that was under way when the guest moved is never answered:
# who answers it is another host's, and knows nothing of the connection.
MOVES = f"""#!/bin/sh
for port in {CARRIED} {SHUT}; do (while :; do nc -l -p $port -e /bin/date; done) & done
printf '#!/bin/sh\\n[ "$1" = bound ] && ip addr add $ip/24 dev $interface && echo "LEASE $ip" >/dev/console' >/lease
chmod +x /lease
round=0 told=
while :; do
    round=$((round + 1)) volume=none
    if [ -e /sys/class/net/eth1 ]; then
        [ "$told" ] || (ip link set eth1 up; udhcpc -i eth1 -q -n -t 20 -T 1 -s /lease >/dev/null 2>&1)
        card=there told=yes
    else
        card=gone told=
    fi
    for disk in /sys/block/*; do
        [ "$(cat $disk/size)" = 4194304 ] || continue
        printf '%08d' $round | dd of=/dev/${{disk##*/}} bs=8 conv=fsync 2>/dev/null
        echo 3 >/proc/sys/vm/drop_caches
        volume=$(dd if=/dev/${{disk##*/}} bs=8 count=1 2>/dev/null)
    done
    printf 'GET /openstack/latest/meta_data.json HTTP/1.0\\r\\n\\r\\n' |
        timeout 30 nc -w 10 169.254.169.254 80 >/tmp/told
    case "$(head -n 1 /tmp/told)" in *" 200 "*) answer=good ;; *) answer=bad ;; esac
    printf 'POST /openstack/latest/password HTTP/1.0\\r\\nContent-Length: 8\\r\\n\\r\\nc2VhbGVk' |
        timeout 30 nc -w 10 169.254.169.254 80 >/tmp/told
    echo "MOVES $round card=$card volume=$volume metadata=$answer password=$(head -n 1 /tmp/told | cut -d ' ' -f 2)"
    sleep 1
done
"""
WATCHES = f"""#!/bin/sh
head -c 300000 /dev/zero | tr '\\0' x | fold -w 99
echo SPOKEN
round=0
while :; do
    round=$((round + 1))
    if ping -c 1 -W 3 $ADDRESS >/dev/null 2>&1; then ping=yes; else ping=no; fi
    for port in {CARRIED} {SHUT}; do
        eval port$port=shut
        timeout 10 nc -w 1 $ADDRESS $port </dev/null 2>/dev/null | grep -q : && eval port$port=open
    done
    echo "WATCHES $round ping=$ping carried=$port{CARRIED} shut=$port{SHUT}"
    sleep 1
done
"""
GOOD = "ping=yes carried=open shut=shut"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCloud]:
    more = {"console": {"token_seconds": LINK_SECONDS}}
    with real_cloud(tmp_path_factory.mktemp("devices") / "data", more=more, steady=True) as running:
        yield running


@pytest.fixture(scope="module")
def openstack(cloud: RealCloud) -> Iterator[Client]:
    with tempfile.TemporaryDirectory() as directory, forking(Path(directory)):
        yield Client(Path(directory) / "openstack", cloud)


def test_a_linux_moves_with_its_card_and_its_volume(cloud: RealCloud, openstack: Client) -> None:
    first, second = _network(cloud, "first", "10.50.0.0/24"), _network(cloud, "second", "10.60.0.0/24")
    group = _group(cloud, {"protocol": "icmp"}, {"protocol": "tcp", "port_range_min": 7001, "port_range_max": 7001})
    port = _port(cloud, first, group)
    address = port["fixed_ips"][0]["ip_address"]
    mover = _boot(cloud, "mover", port["id"], MOVES)
    watcher = _boot(cloud, "watcher", _port(cloud, first, group)["id"], WATCHES.replace("$ADDRESS", address))
    for server in (mover, watcher):
        cloud.wait(server, "ACTIVE")
    openstack("volume create --size 2 data")
    cloud.says(watcher, "SPOKEN")
    written = list((cloud.instances(cloud.host_of(watcher)) / watcher).glob("console.log*"))
    assert len(written) >= 3
    assert all(file.stat().st_size <= CONSOLE_BYTES for file in written)
    cloud.says(mover, r"MOVES \d+ card=gone volume=none metadata=good password=200")
    password = f"/servers/{mover}/os-server-password"
    until(lambda: cloud.client().get("compute", password).json()["password"] == "c2VhbGVk", "its password is known")
    cloud.says(watcher, f"WATCHES \\d+ {GOOD}")

    added = _port(cloud, second, group)
    openstack(f"server add port mover {added['id']}")
    cloud.says(mover, f"LEASE {added['fixed_ips'][0]['ip_address']}")
    tap = f"knt{added['id'].replace('-', '')[:12]}"
    host = cloud.hosts[cloud.host_of(mover)]
    assert tap in host.do("ip", "-br", "link")
    openstack(f"server remove port mover {added['id']}")
    cloud.says(mover, r"(?s)card=there.*card=gone")
    until(lambda: tap not in host.do("ip", "-br", "link"), "its tap is gone")

    openstack("server add volume mover data")
    cloud.says(mover, r"volume=0\d+ metadata=good")
    before, seen = cloud.host_of(mover), _last(cloud, watcher)
    openstack("server migrate --live-migration --wait mover")
    cloud.wait(mover, "ACTIVE")
    assert cloud.host_of(mover) != before
    assert cloud.runs(mover) == [cloud.host_of(mover)]

    # Everything is as before soon, and nothing was open meanwhile that should not be. The guests themselves wait
    # a second for each other, which a busy machine may exceed.
    _in_a_round_after(cloud, mover, r"card=gone volume=0*\1 metadata=good password=409")
    _in_a_round_after(cloud, watcher, GOOD)
    rounds = re.findall(r"WATCHES (\d+) (.*)\n", cloud.said(watcher))
    assert all(said.endswith("shut=shut") for _, said in rounds)
    assert sum("ping=no" in said for number, said in rounds if int(number) > seen) <= 10
    assert cloud.said(mover).count("BOOTED") == 1

    assert cloud.client().delete("compute", password).status == 204
    cloud.says(mover, r"(?s)password=409.*password=200")
    openstack("server remove volume mover data")
    cloud.says(mover, r"(?s)volume=0.*volume=none")
    openstack("server delete --wait mover watcher")
    cloud.wait_clean()


def test_the_screen_in_a_browser(cloud: RealCloud, openstack: Client) -> None:
    server = cloud.boot("shown", cloud.micro())
    socket, began = until(lambda: _screen(openstack), "a link is used while it is good")
    assert asyncio.run(_greeting(re.sub("token=.*", "token=made-up", socket))) is None
    time.sleep(max(0.0, began + LINK_SECONDS + 0.5 - time.monotonic()))
    assert asyncio.run(_greeting(socket)) is None

    refused = cloud.client().post("compute", f"/servers/{server}/action", {"changePassword": {"adminPass": "secret"}})
    assert refused.status == 409
    assert "guest agent" in refused.json()["conflictingRequest"]["message"]
    openstack("server delete --wait shown")


def test_a_password_that_nobody_sets(cloud: RealCloud) -> None:
    """The image says that there is an agent, and there is none."""
    image = cloud.image("boasting", cloud.site.micro_image("boasting").read_bytes(), hw_qemu_guest_agent="yes")
    server = cloud.boot("boasting", image)
    cloud.act(server, "changePassword", {"adminPass": "secret"})
    cloud.wait(server, "ACTIVE")
    path = f"/servers/{server}/os-instance-actions"
    request = cloud.client().get("compute", path).json()["instanceActions"][0]["request_id"]
    action = cloud.client().get("compute", f"{path}/{request}").json()["instanceAction"]
    assert (action["action"], action["message"]) == ("changePassword", "Error")
    (failed,) = [event for event in action["events"] if event["result"] == "Error"]
    assert "nobody in the guest" in failed["details"]
    assert "no agent in guest" in failed["traceback"]
    cloud.client().delete("compute", f"/servers/{server}")
    cloud.wait_gone(server)


def _screen(openstack: Client) -> tuple[str, float] | None:
    """The way to the screen, which has greeted us, and when we got it; nothing if we were slower than it is good."""
    asked = time.monotonic()
    url = openstack("console url show shown -f value -c url").strip()
    began = time.monotonic()
    with urllib.request.urlopen(url, timeout=60) as page:
        assert page.status == 200
        assert b"noVNC" in page.read()
    at = urlsplit(url)
    socket = f"ws://{at.netloc}/{parse_qs(at.query)['path'][0]}"
    greeting = asyncio.run(_greeting(socket))
    if greeting is None and time.monotonic() > asked + LINK_SECONDS:
        return None
    assert greeting == GREETING
    return socket, began


async def _greeting(url: str) -> bytes | None:
    """What the screen says first; nothing if the proxy does not let us in."""
    try:
        async with asyncio.timeout(60), connect(url, compression=None, proxy=None) as socket:
            said = await socket.recv()
            assert isinstance(said, bytes)
            return said
    except InvalidStatus:
        return None


def _in_a_round_after(cloud: RealCloud, server: str, words: str) -> None:
    """The guest says the words in a round that has not begun yet."""
    number = _last(cloud, server) + 1

    def later(said: str) -> bool:
        return any(int(found) > number for found in re.findall(rf"(?:MOVES|WATCHES) (\d+) {words}", said))

    cloud.told(server, later, f"{words} after round {number}")


def _last(cloud: RealCloud, server: str) -> int:
    """The newest round that the guest tells of."""
    return int(re.findall(r"(?:MOVES|WATCHES) (\d+) ", cloud.said(server))[-1])


def _boot(cloud: RealCloud, name: str, port: str, script: str) -> str:
    image = cloud.image("tiny", linux_image().read_bytes(), "qcow2")
    told = base64.b64encode(script.encode()).decode()
    ports = [{"port": port}]
    flavor = cloud.flavor("linux", ram=192)
    return cloud.boot(name, image, wait=False, flavorRef=flavor, networks=ports, user_data=told)


def _network(cloud: RealCloud, name: str, cidr: str) -> str:
    client = cloud.client()
    made: str = client.post("network", "/networks", {"network": {"name": name}}).json()["network"]["id"]
    subnet = {"network_id": made, "ip_version": 4, "cidr": cidr}
    assert client.post("network", "/subnets", {"subnet": subnet}).status == 201
    return made


def _group(cloud: RealCloud, *rules: dict[str, Any]) -> str:
    client = cloud.client()
    made = client.post("network", "/security-groups", {"security_group": {"name": "some"}}).json()["security_group"]
    for rule in rules:
        whole = {"security_group_id": made["id"], "direction": "ingress", "ethertype": "IPv4", **rule}
        assert client.post("network", "/security-group-rules", {"security_group_rule": whole}).status == 201
    return str(made["id"])


def _port(cloud: RealCloud, network: str, group: str) -> dict[str, Any]:
    wanted = {"network_id": network, "security_groups": [group]}
    made: dict[str, Any] = cloud.client().post("network", "/ports", {"port": wanted}).json()["port"]
    return made
