"""A cloud with TLS: no data of guests is readable on the network between hosts.

All traffic is captured while guests boot from volumes and migrate, live and cold. It must not contain code of the
guest's boot sector, which is on its disk and in its memory, or domain XML, subjects of NATS, or tokens.
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
from tests.support.virt_hosts import wait_until
from tests.virt.test_cloud_volumes import count_exports, volume_status, wait_for_other_host
from tests.volume.exports import support

GIB = 1 << 30
GUEST_WORD = "sealed"
LIVE_MIGRATION = {"host": None, "block_migration": "auto"}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCloud]:
    with real_cloud(tmp_path_factory.mktemp("tls") / "data", tls=True, long_timeouts=True) as running:
        yield running


class Sniffer:
    """Captures the hosts' traffic; counts the bytes, and the packets with data of guests in clear text."""

    def __init__(self, cloud: RealCloud) -> None:
        self._secrets = (
            micro_guest.boot_sector(GUEST_WORD)[:32],
            b"<domain type=",
            b"kilonova.report.",
            b"X-Auth-Token",
        )
        self._sockets = [self._open(f"{cloud.site.bridge}-{number}") for number in range(11, 11 + len(cloud.hosts))]
        self._ended = threading.Event()
        self.captured_bytes, self.readable_packets = 0, 0

    @staticmethod
    def _open(interface: str) -> socket.socket:
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        opened.bind((interface, 0))
        opened.settimeout(0.2)
        return opened

    def capture(self, interface: socket.socket) -> None:
        while not self._ended.is_set():
            try:
                packet = interface.recv(1 << 17)
            except TimeoutError:
                continue
            self.captured_bytes += len(packet)
            self.readable_packets += any(secret in packet for secret in self._secrets)

    @contextmanager
    def capturing(self) -> Iterator[Sniffer]:
        threads = [threading.Thread(target=self.capture, args=[interface]) for interface in self._sockets]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()
            for interface in self._sockets:
                interface.close()


def assert_encrypted(sniffer: Sniffer) -> None:
    assert sniffer.captured_bytes > 100_000
    assert not sniffer.readable_packets


def boot_from_volume(cloud: RealCloud) -> str:
    image = cloud.micro_image(GUEST_WORD)
    root = {"boot_index": 0, "uuid": image, "source_type": "image", "destination_type": "volume"}
    return cloud.boot("web", None, block_device_mapping_v2=[{**root, "volume_size": 1, "delete_on_termination": True}])


def make_volume(cloud: RealCloud, size: int = 1) -> str:
    body = {"volume": {"size": size}}
    volume_id = cloud.client(version="3.60").post("volume", "/volumes", body).json()["volume"]["id"]
    wait_until(lambda: volume_status(cloud, volume_id) == "available", "the volume is available")
    return str(volume_id)


def attach(cloud: RealCloud, server: str, volume_id: str) -> None:
    body = {"volumeAttachment": {"volumeId": volume_id}}
    answer = cloud.client().post("compute", f"/servers/{server}/os-volume_attachments", body)
    assert answer.status == 200, answer.body


def delete(cloud: RealCloud, server: str) -> None:
    cloud.client().delete("compute", f"/servers/{server}")
    cloud.wait_until_deleted(server)


def migration_refusal(cloud: RealCloud, server: str) -> str:
    """The error of a failed live migration for administrators; the guest stays on its host."""
    first, seen = cloud.host_of(server), cloud.ticks(server)[-1]
    cloud.server_action(server, "os-migrateLive", LIVE_MIGRATION)
    wait_until(lambda: cloud.show(server)["OS-EXT-STS:task_state"] is None, "the migration has ended", 300)
    cloud.wait(server, "ACTIVE")
    assert cloud.hosts_running(server) == [cloud.host_of(server)] == [first]
    wait_until(lambda: cloud.ticks(server)[-1] > seen, "the guest counts on")
    return action_messages(cloud, server, "live-migration")


def action_messages(cloud: RealCloud, server: str, action: str) -> str:
    """The newest action, which must be of this kind, with its events."""
    client = cloud.client()
    newest = client.get("compute", f"/servers/{server}/os-instance-actions").json()["instanceActions"][0]
    assert newest["action"] == action
    path = f"/servers/{server}/os-instance-actions/{newest['request_id']}"
    return str(client.get("compute", path).json()["instanceAction"])


def restart_agent(cloud: RealCloud, name: str, **libvirt: bool) -> None:
    """Restart the agent with these settings, while the host counts as up."""
    out = cloud.agents[name].output_file
    before = out.read_text().count(f"serving {name}")
    cloud.kill_agent(name)
    cloud.settings = {"libvirt": libvirt, f"@{name}": {"insecure": not libvirt.get("migration_tls", True)}}
    cloud.start_agent(name)
    wait_until(lambda: out.read_text().count(f"serving {name}") > before, f"the agent of {name} serves")
    cloud.wait_for_host(name, "up")


def test_volumes_over_tls(cloud: RealCloud) -> None:
    with Sniffer(cloud).capturing() as sniffer:
        server = boot_from_volume(cloud)
        cloud.wait_for_output(server, "TICK 00001")
        first = cloud.host_of(server)
        attach(cloud, server, volume_id := make_volume(cloud))
        wait_until(lambda: volume_status(cloud, volume_id) == "in-use", "the volume is attached")
        wait_until(lambda: count_exports(cloud) == 2, "both volumes are exported")
        assert cloud.hosts[first].execute("virsh", "dumpxml", f"kn-{server}").count("tls='yes'") == 2

        cloud.server_action(server, "os-migrateLive", LIVE_MIGRATION)
        second = wait_for_other_host(cloud, server, first)
        ticks = cloud.ticks(server)
        assert ticks == list(range(1, ticks[-1] + 1))
    assert_encrypted(sniffer)

    # The NBD clients also reconnect over TLS, and see the volume grow.
    host, domain = cloud.hosts[second], f"kn-{server}"
    nodes = '{"execute": "query-named-block-nodes", "arguments": {"flat": true}}'
    wait_until(
        lambda: host.execute("virsh", "qemu-monitor-command", domain, nodes).count('"kn-') == 2,
        "both NBD clients reconnect",
    )
    answer = cloud.client(version="3.60").post("volume", f"/volumes/{volume_id}/action", {"os-extend": {"new_size": 2}})
    assert answer.status == 202, answer.body
    wait_until(
        lambda: f"{2 * GIB}" in host.execute("virsh", "domblkinfo", domain, "vdb"), "the guest sees the new size"
    )

    # They reconnect over TLS to a new daemon, and a swap reads from it.
    support.kill(cloud.data)
    wait_until(lambda: count_exports(cloud) == 2, "the daemon is restarted")
    new_volume_id = make_volume(cloud, 2)
    swapped = {"volumeAttachment": {"volumeId": new_volume_id}}
    answer = cloud.client().request(
        "PUT", "compute", f"/servers/{server}/os-volume_attachments/{volume_id}", json=swapped
    )
    assert answer.status == 202, answer.body
    wait_until(
        lambda: volume_status(cloud, new_volume_id) == "in-use" and volume_status(cloud, volume_id) == "available",
        "the volume is swapped",
    )
    assert host.execute("virsh", "dumpxml", domain).count("tls='yes'") == 2

    # A client without a certificate cannot list exports.
    port = (cloud.data / "exports/address").read_text().strip("{}").rpartition(":")[2]
    command = ["qemu-nbd", "--list", "-b", cloud.site.address, "-p", port]
    listed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert listed.returncode
    assert "TLS" in listed.stderr
    delete(cloud, server)
    wait_until(lambda: count_exports(cloud) == 0, "nothing is exported")


def test_cold_and_live_migration_over_tls(cloud: RealCloud) -> None:
    server = cloud.boot("web", cloud.micro_image(GUEST_WORD))
    cloud.wait_for_output(server, "TICK 00001")
    first = cloud.host_of(server)
    # The base image is transferred too, because the other host does not have it.
    with Sniffer(cloud).capturing() as sniffer:
        cloud.server_action(server, "migrate")
        cloud.wait(server, "VERIFY_RESIZE")
        second = cloud.host_of(server)
        assert second != first
    assert_encrypted(sniffer)
    answer = cloud.client().post("compute", f"/servers/{server}/action", {"confirmResize": None})
    assert answer.status == 204, answer.body
    cloud.wait(server, "ACTIVE")
    cloud.wait_for_output(server, "TICK 00002")

    with Sniffer(cloud).capturing() as sniffer:
        cloud.server_action(server, "os-migrateLive", LIVE_MIGRATION)
        assert wait_for_other_host(cloud, server, second) == first
        seen = cloud.ticks(server)[-1]
        wait_until(lambda: cloud.ticks(server)[-1] > seen, "the guest counts on")
    assert_encrypted(sniffer)
    ticks = cloud.ticks(server)
    since = ticks[len(ticks) - 1 - ticks[::-1].index(1) :]
    assert since == list(range(1, ticks[-1] + 1))
    delete(cloud, server)


def test_host_without_certificates_is_refused(cloud: RealCloud) -> None:
    """Both hosts have the image by now."""
    server = cloud.boot("web", cloud.micro_image(GUEST_WORD))
    cloud.wait_for_output(server, "TICK 00001")
    first = cloud.host_of(server)
    other = next(name for name in cloud.hosts if name != first)

    restart_agent(cloud, other, migration_tls=False, nbd_tls=False)
    # The scheduler tries the host with more free resources first, then the other one.
    booted = boot_from_volume(cloud)
    assert cloud.host_of(booted) == first
    attempts = cloud.client().get("compute", f"/servers/{booted}/kilonova-placement").json()["attempts"]
    assert {attempt["host"] for attempt in attempts} == {first, other}, attempts
    reason = f"{first} migrates over TLS, but libvirt.migration_tls is off on {other}"
    assert reason in migration_refusal(cloud, server)
    restart_agent(cloud, other, nbd_tls=False)
    reason = f"requires TLS, but {other} has no certificates: libvirt.nbd_tls is off"
    assert reason in migration_refusal(cloud, booted)
    delete(cloud, booted)

    # QEMU there has certificates of an unknown authority; the agent's are valid.
    restart_agent(cloud, other)
    host = cloud.hosts[other]
    Authority("unknown").issue(host.certificates, host.address)
    assert "certificate hasn't got a known issuer" in migration_refusal(cloud, server)
    delete(cloud, server)
    cloud.wait_until_clean()
