"""`kilonova agent`: hosts in processes of their own, reached by a real NATS server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import FILE_NAME, SimStore
from tests.hosts.support import guest
from tests.support.nats_server import AgentProcess, NatsServer
from tests.support.nats_server import nats as nats
from tests.support.process import Client, Cloud, NotStarted, Response, kilonova

# Who waits for an answer in vain does so for longer than any test.
PATIENT = {"KILONOVA_OPERATIONS__HOST_SECONDS": "600"}


@contextmanager
def cloud_with(nats: NatsServer, tmp_path: Path, *options: str, **environ: str) -> Iterator[Cloud]:
    with Cloud(tmp_path / "data", "--hosts", "0", *options, environ={**PATIENT, **nats.environ, **environ}) as cloud:
        yield cloud


@contextmanager
def sim_of(agent: AgentProcess) -> Iterator[SimStore]:
    store = SimStore(agent.data / FILE_NAME)
    try:
        yield store
    finally:
        store.close()


def until(reached: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := reached()):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)
    return found


def state_of(client: Client, host: str) -> str | None:
    services = client.get("compute", "/os-services?binary=nova-compute").json()["services"]
    return next((service["state"] for service in services if service["host"] == host), None)


def console(client: Client, server_id: str) -> Response:
    return client.post("compute", f"/servers/{server_id}/action", {"os-getConsoleOutput": {}})


def up(cloud: Cloud, *hosts: str) -> Client:
    client = cloud.client("kilonova")
    for host in hosts:
        until(lambda host=host: state_of(client, host) == "up")  # type: ignore[misc]
    return client


def is_down(cloud: Cloud, client: Client, host: str) -> None:
    """Once time has passed, and for good: nothing is heard of it that would show in the next seconds."""

    def seen() -> bool:
        cloud.age(host)
        time.sleep(2.5)
        return state_of(client, host) == "down"

    until(seen)


@pytest.mark.parametrize("empty_url", ["sqlite", "postgresql"], indirect=True)
def test_servers_are_built_and_deleted_on_hosts_elsewhere(nats: NatsServer, tmp_path: Path, empty_url: str) -> None:
    database = () if empty_url.startswith("sqlite") else ("--database", empty_url)
    with (
        cloud_with(nats, tmp_path, *database) as cloud,
        nats.agent(cloud, "rack-1.example.org") as one,
        nats.agent(cloud, "rack 2") as two,
    ):
        client = up(cloud, one.host, two.host)
        servers = [client.wait(client.boot(f"web-{number}"), status="ACTIVE") for number in range(4)]
        assert {server["OS-EXT-SRV-ATTR:host"] for server in servers} == {one.host, two.host}
        with sim_of(one) as first, sim_of(two) as second:
            guests = [*first.all_guests(), *second.all_guests()]
            assert {guest.id for _, guest in guests} == {server["id"] for server in servers}
            for server in servers:
                client.delete("compute", f"/servers/{server['id']}")
            until(lambda: not [*first.all_guests(), *second.all_guests()])


def test_a_host_is_down_while_its_agent_is_dead_and_then_up_again(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one, nats.agent(cloud, "two") as two:
        client = up(cloud, "one", "two")
        one.kill()
        is_down(cloud, client, "one")
        server = client.wait(client.boot(), status="ACTIVE")
        assert server["OS-EXT-SRV-ATTR:host"] == "two"
        assert state_of(client, "two") == "up"
        one.start()
        up(cloud, "one")
        assert two.stop() == 0
        two.start()
        up(cloud, "two")
        client.post("compute", f"/servers/{server['id']}/action", {"os-stop": None})
        client.wait(server["id"], status="SHUTOFF")


def test_an_agent_killed_in_the_middle_of_a_boot_goes_on_with_it(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one:
        client = up(cloud, "one")
        with sim_of(one) as sim:
            identity = _in_the_middle_of_a_boot(client, sim)
            one.kill()
            Rules(sim).clear()
            one.start()
            # Long before the time in which a host may be slow is over: nobody waits for an answer that cannot come.
            client.wait(identity, status="ACTIVE")
            assert [guest.boots for _, guest in sim.all_guests()] == [1]


def test_an_agent_stopped_in_the_middle_of_a_boot_neither_waits_nor_undoes_it(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one:
        client = up(cloud, "one")
        with sim_of(one) as sim:
            identity = _in_the_middle_of_a_boot(client, sim)
            assert one.stop() == 0
            assert "stopped in the middle of commands" in one.log
            Rules(sim).clear()
            one.start()
            client.wait(identity, status="ACTIVE")


def _in_the_middle_of_a_boot(client: Client, sim: SimStore) -> str:
    """Also the agent is, not only whoever has asked it."""
    rules = Rules(sim)
    rules.add_failure("one", "spawn", "hang", None, None)
    identity = client.boot()
    until(lambda: rules.all()[0].fired)
    return identity


def test_a_restart_of_the_broker_costs_a_moment(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one:
        client = up(cloud, "one")
        with sim_of(one) as sim:
            Rules(sim).add_failure("one", "spawn", "hang", None, None)
            identity = client.boot()
            client.wait(identity, task_state="spawning")
            nats.stop()
            time.sleep(0.5)
            nats.start()
            Rules(sim).clear()
            client.wait(identity, status="ACTIVE")
            assert [guest.boots for _, guest in sim.all_guests()] == [1]
        until(lambda: state_of(client, "one") == "up")


def test_all_start_without_a_broker_and_find_each_other_when_it_comes(nats: NatsServer, tmp_path: Path) -> None:
    nats.stop()
    with cloud_with(nats, tmp_path, "--hosts", "1") as cloud, nats.agent(cloud, "one") as one:
        client = cloud.client("kilonova")
        client.wait(client.boot(), status="ACTIVE")
        assert state_of(client, one.host) is None
        nats.start()
        up(cloud, one.host, "sim-001")


def test_a_control_plane_killed_in_the_middle_goes_on(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one:
        client = up(cloud, "one")
        with sim_of(one) as sim:
            Rules(sim).add_failure("one", "spawn", "hang", None, None)
            identity = client.boot()
            client.wait(identity, task_state="spawning")
            cloud.kill()
            cloud.start()
            Rules(sim).clear()
            cloud.client("kilonova").wait(identity, status="ACTIVE")
            assert [guest.boots for _, guest in sim.all_guests()] == [1]


def test_guests_that_change_by_themselves_are_shown_as_they_are(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one, sim_of(one) as sim:
        client = up(cloud, "one")
        identity = client.boot()
        client.wait(identity, status="ACTIVE")
        for power, shown, number in (
            ("crashed", "SHUTOFF", 6),
            ("running", "ACTIVE", 1),
            ("paused", "PAUSED", 3),
            ("shutdown", "SHUTOFF", 4),
        ):
            sim.set_power("one", identity, power)  # type: ignore[arg-type]
            client.wait(identity, status=shown, power_state=number)  # type: ignore[arg-type]
        actions = client.get("compute", f"/servers/{identity}/os-instance-actions").json()["instanceActions"]
        assert [action["action"] for action in actions] == ["stop", "pause", "start", "stop", "create"]
        path = f"/servers/{identity}/os-instance-actions/{actions[0]['request_id']}"
        (event,) = client.get("compute", path, version="2.84").json()["instanceAction"]["events"]
        assert (event["result"], event["details"]) == ("Success", "the guest was found shut down")
        client.post("compute", f"/servers/{identity}/action", {"os-start": None})
        client.wait(identity, status="ACTIVE")


def test_a_guest_that_nobody_knows_is_told_of_and_left_alone(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one, sim_of(one) as sim:
        client = up(cloud, "one")
        client.wait(client.boot(), status="ACTIVE")
        data = ("doctor", "--data", str(cloud.data))
        sound = kilonova(*data, environ=nats.environ)
        assert (sound.returncode, sound.stdout) == (0, "Everything agrees.\n"), sound
        sim.add_guest("one", guest("11111111-2222-3333-4444-555555555555"), "disk")
        until(lambda: "belongs to no server" in cloud.log)
        time.sleep(1.5)
        assert cloud.log.count("belongs to no server") == 1
        metrics = client.plain("GET", cloud.endpoints["compute"].removesuffix("/compute/v2.1") + "/metrics").body
        assert b'kilonova_unknown_guests{host="one"} 1.0' in metrics
        found = kilonova(*data, "--json", environ=nats.environ)
        assert [finding["kind"] for finding in json.loads(found.stdout)] == ["guest without server"]
        one.kill()
        unheard = kilonova(*data, environ=nats.environ)
        assert "Guests of one are not compared: no agent is connected for it" in unheard.stderr
        assert unheard.returncode == 0, unheard.stdout
        assert len(sim.all_guests()) == 2


def test_an_evacuated_guest_is_removed_before_its_host_is_up(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one, nats.agent(cloud, "two") as two:
        client = up(cloud, "one", "two")
        identity = client.boot()
        host = client.wait(identity, status="ACTIVE")["OS-EXT-SRV-ATTR:host"]
        dead, left = (one, two) if host == "one" else (two, one)
        dead.kill()
        is_down(cloud, client, host)
        client.post("compute", f"/servers/{identity}/action", {"evacuate": {}}, version="2.14")
        until(
            lambda: client.get("compute", f"/servers/{identity}").json()["server"]["OS-EXT-SRV-ATTR:host"] == left.host
        )
        client.wait(identity, status="ACTIVE")
        with sim_of(dead) as sim:
            assert len(sim.all_guests()) == 1
            dead.start()
            up(cloud, host)
            assert sim.all_guests() == []
        with sim_of(left) as sim:
            assert [found.power for _, found in sim.all_guests()] == ["running"]


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_several_workers_hear_of_the_same_hosts(nats: NatsServer, tmp_path: Path, empty_url: str) -> None:
    data, options = tmp_path / "data", ("--database", empty_url)
    short = {**nats.environ, "KILONOVA_OPERATIONS__LEASE_SECONDS": "2"}
    first, second = (
        Cloud(data, *options, "--hosts", "0", command=("worker",), environ=short) for _ in range(2)
    )  # fmt: skip
    with Cloud(data, *options, command=("api",), environ=nats.environ) as api, first, second:
        with nats.agent(api, "one") as one, sim_of(one) as sim:
            client = up(api, "one")
            identity = client.boot()
            client.wait(identity, status="ACTIVE")
            sim.set_power("one", identity, "shutdown")
            client.wait(identity, status="SHUTOFF")
            time.sleep(1.0)
            actions = client.get("compute", f"/servers/{identity}/os-instance-actions").json()["instanceActions"]
            assert [action["action"] for action in actions] == ["stop", "create"], "told by both, written once"
            written = console(client, identity).json()["output"]
            assert written.startswith(f"boot 1 of {identity}\n"), "the API asks the host itself"
            first.kill()
            client.wait(client.boot(), status="ACTIVE")


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_an_api_that_reaches_no_hosts_says_so(tmp_path: Path, empty_url: str) -> None:
    data, options = tmp_path / "data", ("--database", empty_url)
    with (
        Cloud(data, *options, "--hosts", "1", command=("worker",)),
        Cloud(data, *options, command=("api",)) as api,
    ):
        client = api.client("kilonova")
        identity = client.boot()
        client.wait(identity, status="ACTIVE")
        refused = console(client, identity)
        assert refused.status == 503, refused.body
        assert b"messaging" in refused.body


def test_reads_of_a_host_whose_agent_is_dead_fail_at_once(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one:
        client = up(cloud, "one")
        identity = client.boot()
        client.wait(identity, status="ACTIVE")
        assert console(client, identity).status == 200
        one.kill()
        refused = console(client, identity)
        assert refused.status == 409, refused.body
        assert b"its host does not answer" in refused.body


def test_one_agent_at_a_time_serves_a_directory(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with(nats, tmp_path) as cloud, nats.agent(cloud, "one"):
        with pytest.raises(NotStarted) as refused:
            nats.agent(cloud, "one").start()
        assert refused.value.code == 3
        assert "is in use by process" in refused.value.output


@pytest.mark.parametrize(
    ("missing", "words"),
    [("KILONOVA_MESSAGING__URL", "messaging.url"), ("KILONOVA_AGENT__IMAGE_URL", "agent.image_url")],
)
def test_an_agent_says_what_it_lacks(tmp_path: Path, missing: str, words: str) -> None:
    environ = {"KILONOVA_MESSAGING__URL": "nats://127.0.0.1:1", "KILONOVA_AGENT__IMAGE_URL": "http://127.0.0.1:1/image"}
    found = kilonova("agent", "--data", str(tmp_path / "data"), environ={**environ, missing: ""})
    assert found.returncode == 1
    assert words in found.stderr
    assert len(found.stderr.splitlines()) == 1
