"""A cloud with certificates: nothing of a guest is to be read on the cables between the machines.

Every machine is listened to while guests boot from volumes, move alive and move cold. What is looked for is code of the
guest's boot sector, which is on its disk and in its memory and which it says to nobody, and what hosts tell each other
of domains.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support import micro_guest
from tests.support.certificates import Authority
from tests.support.virt_cloud import RealCloud, real_cloud
from tests.support.virt_hosts import until
from tests.virt.test_volumes_proof import elsewhere, exports, status
from tests.volume.exports import support

GIB = 1 << 30
WORD = "sealed"
LIVE = {"host": None, "block_migration": "auto"}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCloud]:
    with real_cloud(tmp_path_factory.mktemp("tls") / "data", secure=True, steady=True) as running:
        yield running


class Ear:
    """Hears everything on the cables of the hosts; how much, and whether the guest's code was in it."""

    def __init__(self, cloud: RealCloud) -> None:
        self._secrets = (micro_guest.sector(WORD)[:32], b"<domain type=")
        self._cables = [self._open(f"{cloud.site.bridge}-{number}") for number in range(11, 11 + len(cloud.hosts))]
        self._ended = threading.Event()
        self.heard, self.understood = 0, 0

    @staticmethod
    def _open(cable: str) -> socket.socket:
        found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        found.bind((cable, 0))
        found.settimeout(0.2)
        return found

    def listen(self, cable: socket.socket) -> None:
        while not self._ended.is_set():
            try:
                packet = cable.recv(1 << 17)
            except TimeoutError:
                continue
            self.heard += len(packet)
            self.understood += any(secret in packet for secret in self._secrets)

    @contextmanager
    def listening(self) -> Iterator[Ear]:
        threads = [threading.Thread(target=self.listen, args=[cable]) for cable in self._cables]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()
            for cable in self._cables:
                cable.close()


def unread(ear: Ear) -> None:
    assert ear.heard > 100_000
    assert not ear.understood


def boot_from_volume(cloud: RealCloud) -> str:
    image = cloud.micro(WORD)
    root = {"boot_index": 0, "uuid": image, "source_type": "image", "destination_type": "volume"}
    return cloud.boot("web", None, block_device_mapping_v2=[{**root, "volume_size": 1, "delete_on_termination": True}])


def make_volume(cloud: RealCloud, size: int = 1) -> str:
    made = cloud.client(version="3.60").post("volume", "/volumes", {"volume": {"size": size}}).json()["volume"]["id"]
    until(lambda: status(cloud, made) == "available", "the volume is made")
    return str(made)


def attach(cloud: RealCloud, server: str, volume_id: str) -> None:
    asked = {"volumeAttachment": {"volumeId": volume_id}}
    answer = cloud.client().post("compute", f"/servers/{server}/os-volume_attachments", asked)
    assert answer.status == 200, answer.body


def delete(cloud: RealCloud, server: str) -> None:
    cloud.client().delete("compute", f"/servers/{server}")
    cloud.wait_gone(server)


def refusal(cloud: RealCloud, server: str) -> str:
    """What administrators are told of a live migration that comes to nothing; the guest goes on where it is."""
    first, seen = cloud.host_of(server), cloud.ticks(server)[-1]
    cloud.act(server, "os-migrateLive", LIVE)
    until(lambda: cloud.show(server)["OS-EXT-STS:task_state"] is None, "it has ended", 300)
    cloud.wait(server, "ACTIVE")
    assert cloud.runs(server) == [cloud.host_of(server)] == [first]
    until(lambda: cloud.ticks(server)[-1] > seen, "it goes on")
    return told(cloud, server, "live-migration")


def told(cloud: RealCloud, server: str, action: str) -> str:
    """All of the newest action, which is of this kind."""
    client = cloud.client()
    newest = client.get("compute", f"/servers/{server}/os-instance-actions").json()["instanceActions"][0]
    assert newest["action"] == action
    path = f"/servers/{server}/os-instance-actions/{newest['request_id']}"
    return str(client.get("compute", path).json()["instanceAction"])


def begin_agent(cloud: RealCloud, name: str, **libvirt: bool) -> None:
    """Again, with these settings. The host counts as up all the time."""
    out = cloud.agents[name].out
    before = out.read_text().count(f"serving {name}")
    cloud.kill_agent(name)
    cloud.more = {"libvirt": libvirt}
    cloud.start_agent(name)
    until(lambda: out.read_text().count(f"serving {name}") > before, f"the agent of {name} serves")
    cloud.wait_host(name, "up")


def test_a_server_on_volumes(cloud: RealCloud) -> None:
    with Ear(cloud).listening() as ear:
        server = boot_from_volume(cloud)
        cloud.says(server, "TICK 00001")
        first = cloud.host_of(server)
        attach(cloud, server, made := make_volume(cloud))
        until(lambda: status(cloud, made) == "in-use", "the volume is attached")
        until(lambda: exports(cloud) == 2, "both volumes are exported")
        assert cloud.hosts[first].do("virsh", "dumpxml", f"kn-{server}").count("tls='yes'") == 2

        cloud.act(server, "os-migrateLive", LIVE)
        second = elsewhere(cloud, server, first)
        ticks = cloud.ticks(server)
        assert ticks == list(range(1, ticks[-1] + 1))
    unread(ear)

    # Its clients wait for the daemon by TLS too, and see the volume grow.
    host, domain = cloud.hosts[second], f"kn-{server}"
    nodes = '{"execute": "query-named-block-nodes", "arguments": {"flat": true}}'
    until(lambda: host.do("virsh", "qemu-monitor-command", domain, nodes).count('"kn-') == 2, "its clients wait")
    answer = cloud.client(version="3.60").post("volume", f"/volumes/{made}/action", {"os-extend": {"new_size": 2}})
    assert answer.status == 202, answer.body
    until(lambda: f"{2 * GIB}" in host.do("virsh", "domblkinfo", domain, "vdb"), "the guest sees that it has grown")

    # They come back by TLS to a daemon that is another one, and what they read from it goes to another volume.
    support.kill(cloud.data)
    until(lambda: exports(cloud) == 2, "the daemon is back")
    new = make_volume(cloud, 2)
    swapped = {"volumeAttachment": {"volumeId": new}}
    answer = cloud.client().request("PUT", "compute", f"/servers/{server}/os-volume_attachments/{made}", json=swapped)
    assert answer.status == 202, answer.body
    until(lambda: status(cloud, new) == "in-use" and status(cloud, made) == "available", "the volume is swapped")
    assert host.do("virsh", "dumpxml", domain).count("tls='yes'") == 2

    # Who has no certificate does not even learn what there is.
    port = (cloud.data / "exports/address").read_text().strip("{}").rpartition(":")[2]
    asked = ["qemu-nbd", "--list", "-b", cloud.site.address, "-p", port]
    listed = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=60)
    assert listed.returncode
    assert "TLS" in listed.stderr
    delete(cloud, server)
    until(lambda: exports(cloud) == 0, "nothing is exported")


def test_a_guest_moves_with_its_disk_cold_and_alive(cloud: RealCloud) -> None:
    server = cloud.boot("web", cloud.micro(WORD))
    cloud.says(server, "TICK 00001")
    first = cloud.host_of(server)
    # The image that the disk lies over goes along, as the other host has none.
    with Ear(cloud).listening() as ear:
        cloud.act(server, "migrate")
        cloud.wait(server, "VERIFY_RESIZE")
        second = cloud.host_of(server)
        assert second != first
    unread(ear)
    answer = cloud.client().post("compute", f"/servers/{server}/action", {"confirmResize": None})
    assert answer.status == 204, answer.body
    cloud.wait(server, "ACTIVE")
    cloud.says(server, "TICK 00002")

    with Ear(cloud).listening() as ear:
        cloud.act(server, "os-migrateLive", LIVE)
        assert elsewhere(cloud, server, second) == first
        seen = cloud.ticks(server)[-1]
        until(lambda: cloud.ticks(server)[-1] > seen, "the counter goes on")
    unread(ear)
    ticks = cloud.ticks(server)
    since = ticks[len(ticks) - 1 - ticks[::-1].index(1) :]
    assert since == list(range(1, ticks[-1] + 1))
    delete(cloud, server)


def test_a_host_without_certificates_gets_nothing_and_says_why(cloud: RealCloud) -> None:
    """The image is on both hosts by now."""
    server = cloud.boot("web", cloud.micro(WORD))
    cloud.says(server, "TICK 00001")
    first = cloud.host_of(server)
    other = next(name for name in cloud.hosts if name != first)

    begin_agent(cloud, other, migration_tls=False, nbd_tls=False)
    # A server that boots from a volume is tried there, where there is more room, and then elsewhere.
    booted = boot_from_volume(cloud)
    assert cloud.host_of(booted) == first
    tries = cloud.client().get("compute", f"/servers/{booted}/kilonova-placement").json()["attempts"]
    assert {one["host"] for one in tries} == {first, other}, tries
    words = f"{first} sends guests by TLS, for which {other} has no certificates: libvirt.migration_tls is off"
    assert words in refusal(cloud, server)
    begin_agent(cloud, other, nbd_tls=False)
    words = f"is reached by TLS, for which {other} has no certificates: libvirt.nbd_tls is off"
    assert words in refusal(cloud, booted)
    delete(cloud, booted)

    # QEMU there has some, but nobody knows whose they are; the agent's are good.
    begin_agent(cloud, other)
    host = cloud.hosts[other]
    Authority("strangers").issue(host.certificates, host.address)
    assert "certificate hasn't got a known issuer" in refusal(cloud, server)
    delete(cloud, server)
    cloud.wait_clean()
