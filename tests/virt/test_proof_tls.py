"""A cloud with certificates: nothing of a guest is to be read on the cables between the machines.

Every machine is listened to while guests boot from volumes, move alive and move cold. What is looked for is code of the
guest's boot sector, which is on its disk and in its memory, and which it says to nobody.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support import micro_guest
from tests.support.virt_cloud import RealCloud, real_cloud
from tests.support.virt_hosts import until
from tests.virt.test_volumes_proof import elsewhere, exports, status

GIB = 1 << 30
WORD = "sealed"
LIVE = {"host": None, "block_migration": "auto"}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCloud]:
    with real_cloud(tmp_path_factory.mktemp("tls") / "data", secure=True) as running:
        yield running


class Ear:
    """Hears everything on the cables of the hosts; how much, and whether the guest's code was in it."""

    def __init__(self, cloud: RealCloud) -> None:
        self._secret = micro_guest.sector(WORD)[:32]
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
            self.understood += self._secret in packet

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


def make_volume(cloud: RealCloud) -> str:
    made = cloud.client(version="3.60").post("volume", "/volumes", {"volume": {"size": 1}}).json()["volume"]["id"]
    until(lambda: status(cloud, made) == "available", "the volume is made")
    return str(made)


def attach(cloud: RealCloud, server: str, volume_id: str) -> None:
    asked = {"volumeAttachment": {"volumeId": volume_id}}
    answer = cloud.client().post("compute", f"/servers/{server}/os-volume_attachments", asked)
    assert answer.status == 200, answer.body


def delete(cloud: RealCloud, server: str) -> None:
    cloud.client().delete("compute", f"/servers/{server}")
    cloud.wait_gone(server)


def test_a_server_on_volumes(cloud: RealCloud) -> None:
    with Ear(cloud).listening() as ear:
        server = boot_from_volume(cloud)
        cloud.says(server, "TICK 00001")
        first = cloud.host_of(server)
        attach(cloud, server, made := make_volume(cloud))
        until(lambda: status(cloud, made) == "in-use", "the volume is attached")
        assert exports(cloud) == 2
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
    until(lambda: f"{2 * GIB}" in host.do("virsh", "domblkinfo", domain, "vdb"), "the guest sees that it has grown", 30)

    # Who has no certificate does not even learn what there is.
    port = (cloud.data / "exports/address").read_text().strip("{}").rpartition(":")[2]
    asked = ["qemu-nbd", "--list", "-b", cloud.site.address, "-p", port]
    told = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=30)
    assert told.returncode
    assert "TLS" in told.stderr
    delete(cloud, server)
    assert exports(cloud) == 0


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
