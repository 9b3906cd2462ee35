"""Live migration between two libvirt hosts, and failures during it.

In every case the server ends in a stable and correct state, and its guest runs at most once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.virt_cloud import RealCloud, real_cloud
from tests.support.virt_hosts import Host, Process, wait_until
from tests.virt.clouds import delete_servers

# Slow enough that tests can act during the migration.
SLOW_MIGRATION = {"libvirt": {"migration_mb_per_second": 1}}
# The source's setting decides how a migration is forced: here with post-copy.
POST_COPY = {"libvirt@two": {"force_complete": "postcopy"}}
FILL_MB = 12


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCloud]:
    with real_cloud(tmp_path_factory.mktemp("slow") / "data", settings={**SLOW_MIGRATION, **POST_COPY}) as running:
        yield running


def test_guest_continues_without_a_gap(long_timeouts: RealCloud) -> None:
    cloud = long_timeouts
    server = cloud.boot("web", cloud.micro_image())
    cloud.wait_for_output(server, "TICK 00002")
    first = cloud.host_of(server)
    seen = cloud.ticks(server)[-1]

    cloud.server_action(server, "os-migrateLive", {"host": None, "block_migration": "auto"})
    wait_until(lambda: cloud.host_of(server) != first, "the server is on the other host")
    cloud.wait(server, "ACTIVE")

    _assert_counting(cloud, server, seen)
    assert cloud.hosts_running(server) == [cloud.host_of(server)]
    delete_servers(cloud, server)


def test_forced_migration_uses_postcopy(slow: RealCloud) -> None:
    events = _record_events(slow.hosts["two"])
    server, first = _start_migration(slow, "two")
    _force(slow, server)

    _assert_finished(slow, server)
    assert slow.host_of(server) != first
    wait_until(
        lambda: f"'kn-{server}': Suspended Post-copy" in events.output_file.read_text(), "the source reports post-copy"
    )
    events.kill()
    _assert_counting(slow, server, slow.ticks(server)[-1])
    delete_servers(slow, server)


def test_aborted_migration_leaves_the_guest_on_its_host(slow: RealCloud) -> None:
    server, first = _start_migration(slow)
    (migration,) = slow.client().get("compute", f"/servers/{server}/migrations").json()["migrations"]
    slow.client().delete("compute", f"/servers/{server}/migrations/{migration['id']}")

    _assert_finished(slow, server)
    assert slow.host_of(server) == first
    _assert_counting(slow, server, slow.ticks(server)[-1])
    delete_servers(slow, server)


def test_forced_migration_ends_soon(slow: RealCloud) -> None:
    server, first = _start_migration(slow)
    _force(slow, server)

    _assert_finished(slow, server)
    assert slow.host_of(server) != first
    _assert_counting(slow, server, slow.ticks(server)[-1])
    delete_servers(slow, server)


def test_destination_dies(slow: RealCloud) -> None:
    server, first = _start_migration(slow)
    other = next(name for name in slow.hosts if name != first)
    slow.cut_power(other)

    _assert_finished(slow, server)
    assert slow.host_of(server) == first
    _assert_counting(slow, server, slow.ticks(server)[-1])
    slow.power_on(other)
    slow.wait_for_host(other, "up")
    delete_servers(slow, server)


def test_source_agent_dies_and_returns(slow: RealCloud) -> None:
    server, first = _start_migration(slow)
    slow.kill_agent(first)
    time.sleep(1)
    slow.start_agent(first)
    _force_until_done(slow, server)

    _assert_finished(slow, server)
    _assert_counting(slow, server, slow.ticks(server)[-1])
    delete_servers(slow, server)


def test_control_plane_dies_and_returns(slow: RealCloud) -> None:
    server, _ = _start_migration(slow)
    slow.kill_control()
    time.sleep(1)
    slow.control.start()
    _force_until_done(slow, server)

    _assert_finished(slow, server)
    _assert_counting(slow, server, slow.ticks(server)[-1])
    delete_servers(slow, server)


def test_source_dies(slow: RealCloud) -> None:
    server, first = _start_migration(slow)
    slow.cut_power(first)

    wait_until(lambda: slow.show(server)["OS-EXT-STS:task_state"] is None, "the migration has ended", 300)
    assert len(slow.hosts_running(server)) <= 1
    slow.power_on(first)
    slow.wait_for_host(first, "up")

    def has_true_state() -> bool:
        """The host is up before its guests are reported."""
        shown = slow.show(server)
        return shown["status"] == "SHUTOFF" or slow.hosts_running(server) == [shown["OS-EXT-SRV-ATTR:host"]]

    wait_until(has_true_state, "the server's state is that of its guest")
    assert len(slow.hosts_running(server)) <= 1
    if slow.show(server)["status"] == "SHUTOFF":
        slow.server_action(server, "os-start")
        slow.wait(server, "ACTIVE")
    assert slow.hosts_running(server) == [slow.host_of(server)]
    delete_servers(slow, server)


def _record_events(host: Host) -> Process:
    """A process that records libvirt's domain events and has already subscribed."""
    events = host.start_process(["stdbuf", "-oL", "virsh", "event", "--event", "lifecycle", "--loop"], log="events")
    probe = host.directory / "probe.xml"
    probe.write_text("<domain type='qemu'><name>probe</name><memory>1024</memory><os><type>hvm</type></os></domain>")

    def is_recorded() -> bool:
        host.execute("virsh", "define", probe)
        host.execute("virsh", "undefine", "probe")
        return "'probe': Defined" in events.output_file.read_text()

    wait_until(is_recorded, f"events of {host.name} are recorded")
    return events


def _start_migration(cloud: RealCloud, host: str = "one") -> tuple[str, str]:
    """Start a live migration. Returns the server and its source host."""
    server = cloud.boot("web", cloud.micro_image("filled", FILL_MB), host=host)
    cloud.wait_for_output(server, "TICK 00002")
    first = cloud.host_of(server)
    cloud.server_action(server, "os-migrateLive", {"host": None, "block_migration": "auto"})

    def is_migrating() -> bool:
        shown = cloud.client().get("compute", f"/servers/{server}/migrations").json()["migrations"]
        return any(migration["memory_processed_bytes"] for migration in shown)

    wait_until(is_migrating, "the migration is running")
    assert "Unbounded" in cloud.hosts[first].execute("virsh", "domjobinfo", f"kn-{server}")
    return server, first


def _force_until_done(cloud: RealCloud, server: str) -> None:
    """Force the migration until a request succeeds or it has ended."""

    def is_forced_or_over() -> bool:
        running = cloud.client().get("compute", f"/servers/{server}/migrations").json()["migrations"]
        forced = [
            cloud.client().post(
                "compute", f"/servers/{server}/migrations/{migration['id']}/action", {"force_complete": None}
            )
            for migration in running
        ]
        return all(answer.status == 202 for answer in forced)

    wait_until(is_forced_or_over, "the migration is forced, or over")


def _force(cloud: RealCloud, server: str) -> None:
    (migration,) = cloud.client().get("compute", f"/servers/{server}/migrations").json()["migrations"]
    path = f"/servers/{server}/migrations/{migration['id']}/action"
    assert cloud.client().post("compute", path, {"force_complete": None}).status == 202


def _assert_finished(cloud: RealCloud, server: str) -> None:
    """Assert that the migration has ended, and that the guest runs on the server's host only."""
    cloud.wait(server, "ACTIVE", 300)
    assert cloud.hosts_running(server) == [cloud.host_of(server)]


def _assert_counting(cloud: RealCloud, server: str, number: int) -> None:
    wait_until(lambda: cloud.ticks(server)[-1] > number + 1, "the guest counts on")
    ticks = cloud.ticks(server)
    assert ticks == list(range(ticks[0], ticks[-1] + 1))
