"""What a Linux in a guest is told of itself and whom it reaches, what is plugged into it and taken along when it moves;
and the screen of a guest.
"""

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
from tests.support.virt_hosts import CONSOLE_BYTES, linux_image, until
from tests.virt.clouds import LINK_SECONDS, Client, make_network

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
head -c 75000 /dev/zero | tr '\\0' x | fold -w 99
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
KNOCKS = """#!/bin/sh
while :; do
    if ping -c 1 -W 1 $ADDRESS >/dev/null 2>&1; then echo "REACHES $ADDRESS"; else echo "MISSES $ADDRESS"; fi
    sleep 1
done
"""
GOOD = "ping=yes carried=open shut=shut"


@pytest.fixture
def cloud(long_timeouts: RealCloud) -> RealCloud:
    return long_timeouts


def test_linux_guests_reach_whom_they_may_and_one_moves_with_its_card_and_its_volume(
    cloud: RealCloud, openstack: Client
) -> None:
    first, second = make_network(cloud, "first", "10.50.0.0/24"), make_network(cloud, "second", "10.60.0.0/24")
    permitted = ({"protocol": "icmp"}, {"protocol": "tcp", "port_range_min": CARRIED, "port_range_max": CARRIED})
    open_group, closed_group = _group(cloud, "open", *permitted), _group(cloud, "closed")
    port = _port(cloud, first, closed_group)
    address = port["fixed_ips"][0]["ip_address"]
    mover = _boot(cloud, "mover", port["id"], MOVES)
    watcher = _boot(cloud, "watcher", _port(cloud, first, open_group)["id"], WATCHES.replace("$ADDRESS", address))
    told = {"config_drive": True, "metadata": {"colour": "green"}}
    knocks = KNOCKS.replace("$ADDRESS", address)
    distant = _port(cloud, second, open_group)
    far = _boot(cloud, "far", distant["id"], knocks, **told)
    for server in (mover, watcher, far):
        cloud.wait(server, "ACTIVE")

    # Each is told who it is.
    assert cloud.client().get("network", f"/ports/{distant['id']}").json()["port"]["status"] == "ACTIVE"
    for way in ("CONFIGDRIVE", "METADATA"):
        said = json.loads(cloud.says(far, rf"{way} (\{{.*\}})\r?\n").group(1))
        assert (said["uuid"], said["name"], said["meta"]) == (far, "far", {"colour": "green"})
    cloud.says(far, f"DHCP eth0 {distant['fixed_ips'][0]['ip_address']}")
    assert json.loads(cloud.says(watcher, r"METADATA (\{.*\})\r?\n").group(1))["uuid"] == watcher

    # A guest of the same network reaches what the security group permits, as soon as it does.
    cloud.says(watcher, r"WATCHES \d+ ping=no carried=shut shut=shut")
    _permit(cloud, closed_group, *permitted)
    cloud.says(watcher, f"WATCHES \\d+ {GOOD}")
    cloud.says(far, f"MISSES {address}")
    assert f"REACHES {address}" not in cloud.said(far)
    openstack("server delete --wait far")

    openstack("volume create --size 2 data")
    cloud.says(watcher, "SPOKEN")
    written = list((cloud.instances(cloud.host_of(watcher)) / watcher).glob("console.log*"))
    assert len(written) >= 3
    assert all(file.stat().st_size <= CONSOLE_BYTES for file in written)
    cloud.says(mover, r"MOVES \d+ card=gone volume=none metadata=good password=200")
    password = f"/servers/{mover}/os-server-password"
    until(lambda: cloud.client().get("compute", password).json()["password"] == "c2VhbGVk", "its password is known")

    added = _port(cloud, second, open_group)
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
    socket = _screen(openstack)
    assert asyncio.run(_greeting(re.sub("token=.*", "token=made-up", socket))) is None
    with cloud.database() as db:
        (lasts,) = db.execute("SELECT expires_at - created_at FROM console_tokens").fetchone()
        assert lasts == pytest.approx(LINK_SECONDS)
        db.execute("UPDATE console_tokens SET expires_at = expires_at - ?", (LINK_SECONDS,))
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


def _screen(openstack: Client) -> str:
    """The way to the screen, which has greeted us."""
    url = openstack("console url show shown -f value -c url").strip()
    with urllib.request.urlopen(url, timeout=60) as page:
        assert page.status == 200
        assert b"noVNC" in page.read()
    at = urlsplit(url)
    socket = f"ws://{at.netloc}/{parse_qs(at.query)['path'][0]}"
    assert asyncio.run(_greeting(socket)) == GREETING
    return socket


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


def _boot(cloud: RealCloud, name: str, port: str, script: str, **more: Any) -> str:
    image = cloud.image("tiny", linux_image().read_bytes(), "qcow2")
    told = base64.b64encode(script.encode()).decode()
    ports = [{"port": port}]
    flavor = cloud.flavor("linux", ram=192)
    return cloud.boot(name, image, wait=False, flavorRef=flavor, networks=ports, user_data=told, **more)


def _group(cloud: RealCloud, name: str, *rules: dict[str, Any]) -> str:
    made = cloud.client().post("network", "/security-groups", {"security_group": {"name": name}})
    group = str(made.json()["security_group"]["id"])
    _permit(cloud, group, *rules)
    return group


def _permit(cloud: RealCloud, group: str, *rules: dict[str, Any]) -> None:
    for rule in rules:
        whole = {"security_group_id": group, "direction": "ingress", "ethertype": "IPv4", **rule}
        assert cloud.client().post("network", "/security-group-rules", {"security_group_rule": whole}).status == 201


def _port(cloud: RealCloud, network: str, group: str) -> dict[str, Any]:
    wanted = {"network_id": network, "security_groups": [group]}
    made: dict[str, Any] = cloud.client().post("network", "/ports", {"port": wanted}).json()["port"]
    return made
