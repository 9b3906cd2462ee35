"""Live migration between two real hosts, and everything that dies in the middle of one.

Whatever happens: the server ends in a state that is stable and true, and its guest runs once or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.virt_cloud import RealCloud, real_cloud
from tests.support.virt_hosts import Host, Process, until
from tests.virt.clouds import delete

# So slow that there is time to do something while it lasts.
SLOW = {"libvirt": {"migration_mb_per_second": 1}}
# The source says how it is forced: guests that come from here go on at the destination.
POST_COPY = {"libvirt@two": {"force_complete": "postcopy"}}
FULL_MB = 12


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCloud]:
    with real_cloud(tmp_path_factory.mktemp("slow") / "data", more={**SLOW, **POST_COPY}) as running:
        yield running


def test_the_counter_goes_on_without_a_gap(long_timeouts: RealCloud) -> None:
    cloud = long_timeouts
    server = cloud.boot("web", cloud.micro())
    cloud.says(server, "TICK 00002")
    first = cloud.host_of(server)
    seen = cloud.ticks(server)[-1]

    cloud.act(server, "os-migrateLive", {"host": None, "block_migration": "auto"})
    until(lambda: cloud.host_of(server) != first, "it is elsewhere")
    cloud.wait(server, "ACTIVE")

    _ticks_on(cloud, server, seen)
    assert cloud.runs(server) == [cloud.host_of(server)]
    delete(cloud, server)


def test_a_forced_migration_goes_on_at_the_destination(slow: RealCloud) -> None:
    ear = _listen(slow.hosts["two"])
    server, first = _under_way(slow, "two")
    _force(slow, server)

    _ends(slow, server)
    assert slow.host_of(server) != first
    until(lambda: f"'kn-{server}': Suspended Post-copy" in ear.out.read_text(), "the source has told of it")
    ear.kill()
    _ticks_on(slow, server, slow.ticks(server)[-1])
    delete(slow, server)


def test_an_aborted_migration_leaves_the_guest_where_it_is(slow: RealCloud) -> None:
    server, first = _under_way(slow)
    (migration,) = slow.client().get("compute", f"/servers/{server}/migrations").json()["migrations"]
    slow.client().delete("compute", f"/servers/{server}/migrations/{migration['id']}")

    _ends(slow, server)
    assert slow.host_of(server) == first
    _ticks_on(slow, server, slow.ticks(server)[-1])
    delete(slow, server)


def test_a_forced_migration_ends_at_once(slow: RealCloud) -> None:
    server, first = _under_way(slow)
    _force(slow, server)

    _ends(slow, server)
    assert slow.host_of(server) != first
    _ticks_on(slow, server, slow.ticks(server)[-1])
    delete(slow, server)


def test_the_destination_dies(slow: RealCloud) -> None:
    server, first = _under_way(slow)
    other = next(name for name in slow.hosts if name != first)
    slow.cut_power(other)

    _ends(slow, server)
    assert slow.host_of(server) == first
    _ticks_on(slow, server, slow.ticks(server)[-1])
    slow.power_on(other)
    slow.wait_host(other, "up")
    delete(slow, server)


def test_the_agent_of_the_source_dies_and_comes_back(slow: RealCloud) -> None:
    server, first = _under_way(slow)
    slow.kill_agent(first)
    time.sleep(1)
    slow.start_agent(first)
    _hurry(slow, server)

    _ends(slow, server)
    _ticks_on(slow, server, slow.ticks(server)[-1])
    delete(slow, server)


def test_the_control_plane_dies_and_comes_back(slow: RealCloud) -> None:
    server, _ = _under_way(slow)
    slow.kill_control()
    time.sleep(1)
    slow.control.start()
    _hurry(slow, server)

    _ends(slow, server)
    _ticks_on(slow, server, slow.ticks(server)[-1])
    delete(slow, server)


def test_the_source_dies(slow: RealCloud) -> None:
    server, first = _under_way(slow)
    slow.cut_power(first)

    until(lambda: slow.show(server)["OS-EXT-STS:task_state"] is None, "the migration has ended", 300)
    assert len(slow.runs(server)) <= 1
    slow.power_on(first)
    slow.wait_host(first, "up")

    def is_told() -> bool:
        """What runs: the host is up before anybody has looked at its guests."""
        shown = slow.show(server)
        return shown["status"] == "SHUTOFF" or slow.runs(server) == [shown["OS-EXT-SRV-ATTR:host"]]

    until(is_told, "its state is true")
    assert len(slow.runs(server)) <= 1
    if slow.show(server)["status"] == "SHUTOFF":
        slow.act(server, "os-start")
        slow.wait(server, "ACTIVE")
    assert slow.runs(server) == [slow.host_of(server)]
    delete(slow, server)


def _listen(host: Host) -> Process:
    """Who writes down what the host's libvirt tells of domains; it hears already."""
    ear = host.run(["stdbuf", "-oL", "virsh", "event", "--event", "lifecycle", "--loop"], log="events")
    bell = host.directory / "bell.xml"
    bell.write_text("<domain type='qemu'><name>bell</name><memory>1024</memory><os><type>hvm</type></os></domain>")

    def rings() -> bool:
        host.do("virsh", "define", bell)
        host.do("virsh", "undefine", "bell")
        return "'bell': Defined" in ear.out.read_text()

    until(rings, f"events of {host.name} are heard")
    return ear


def _under_way(cloud: RealCloud, host: str = "one") -> tuple[str, str]:
    """A server in the middle of a live migration, and where it comes from."""
    server = cloud.boot("web", cloud.micro("laden", FULL_MB), host=host)
    cloud.says(server, "TICK 00002")
    first = cloud.host_of(server)
    cloud.act(server, "os-migrateLive", {"host": None, "block_migration": "auto"})

    def moves() -> bool:
        shown = cloud.client().get("compute", f"/servers/{server}/migrations").json()["migrations"]
        return any(migration["memory_processed_bytes"] for migration in shown)

    until(moves, "the migration is under way")
    assert "Unbounded" in cloud.hosts[first].do("virsh", "domjobinfo", f"kn-{server}")
    return server, first


def _hurry(cloud: RealCloud, server: str) -> None:
    """Force the migration that somebody watches again, unless it has ended by now."""

    def is_over() -> bool:
        found = cloud.client().get("compute", f"/servers/{server}/migrations").json()["migrations"]
        forced = [
            cloud.client().post("compute", f"/servers/{server}/migrations/{one['id']}/action", {"force_complete": None})
            for one in found
        ]
        return all(answer.status == 202 for answer in forced)

    until(is_over, "the migration is forced, or over")


def _force(cloud: RealCloud, server: str) -> None:
    (migration,) = cloud.client().get("compute", f"/servers/{server}/migrations").json()["migrations"]
    path = f"/servers/{server}/migrations/{migration['id']}/action"
    assert cloud.client().post("compute", path, {"force_complete": None}).status == 202


def _ends(cloud: RealCloud, server: str) -> None:
    """The migration is over, and the guest runs once, where its server is."""
    cloud.wait(server, "ACTIVE", 300)
    assert cloud.runs(server) == [cloud.host_of(server)]


def _ticks_on(cloud: RealCloud, server: str, number: int) -> None:
    until(lambda: cloud.ticks(server)[-1] > number + 1, "the counter goes on")
    ticks = cloud.ticks(server)
    assert ticks == list(range(ticks[0], ticks[-1] + 1))
