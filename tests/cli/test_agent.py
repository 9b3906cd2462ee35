"""`kilonova agent`: hosts in separate processes, connected by a real NATS server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import SIM_FILE_NAME, SimStore
from tests.hosts.support import guest
from tests.support.cloud_process import Client, CloudProcess, NotStarted, Response, kilonova
from tests.support.nats_server import AgentProcess, NatsServer
from tests.support.nats_server import nats as nats

# Longer than any test.
LONG_HOST_TIMEOUT = {"KILONOVA_OPERATIONS__HOST_TIMEOUT_SECONDS": "600"}


@contextmanager
def cloud_with_nats(nats: NatsServer, tmp_path: Path, *options: str, **environ: str) -> Iterator[CloudProcess]:
    with CloudProcess(
        tmp_path / "data", "--hosts", "0", *options, environ={**LONG_HOST_TIMEOUT, **nats.environ, **environ}
    ) as cloud:
        yield cloud


@contextmanager
def sim_store(agent: AgentProcess) -> Iterator[SimStore]:
    store = SimStore(agent.data / SIM_FILE_NAME)
    try:
        yield store
    finally:
        store.close()


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)
    return found


def host_state(client: Client, host: str) -> str | None:
    services = client.get("compute", "/os-services?binary=nova-compute").json()["services"]
    return next((service["state"] for service in services if service["host"] == host), None)


def get_console(client: Client, server_id: str) -> Response:
    return client.post("compute", f"/servers/{server_id}/action", {"os-getConsoleOutput": {}})


def wait_until_up(cloud: CloudProcess, *hosts: str) -> Client:
    client = cloud.client("kilonova")
    for host in hosts:
        wait_until(lambda host=host: host_state(client, host) == "up")  # type: ignore[misc]
    return client


def wait_until_down(cloud: CloudProcess, client: Client, host: str) -> None:
    """Wait until the host is down, and check that no late report brings it up again."""

    def stays_down() -> bool:
        cloud.set_last_report_back(host)
        time.sleep(2.5)
        return host_state(client, host) == "down"

    wait_until(stays_down)


@pytest.mark.parametrize("empty_url", ["sqlite", "postgresql"], indirect=True)
def test_servers_are_created_and_deleted_on_agent_hosts(nats: NatsServer, tmp_path: Path, empty_url: str) -> None:
    database = () if empty_url.startswith("sqlite") else ("--database", empty_url)
    with (
        cloud_with_nats(nats, tmp_path, *database) as cloud,
        nats.agent(cloud, "rack-1.example.org") as one,
        nats.agent(cloud, "rack 2") as two,
    ):
        client = wait_until_up(cloud, one.host, two.host)
        servers = [client.wait(client.boot(f"web-{number}"), status="ACTIVE") for number in range(4)]
        assert {server["OS-EXT-SRV-ATTR:host"] for server in servers} == {one.host, two.host}
        with sim_store(one) as first, sim_store(two) as second:
            guests = [*first.all_guests(), *second.all_guests()]
            assert {guest.id for _, guest in guests} == {server["id"] for server in servers}
            for server in servers:
                client.delete("compute", f"/servers/{server['id']}")
            wait_until(lambda: not [*first.all_guests(), *second.all_guests()])


def test_host_is_down_while_agent_is_dead(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with_nats(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one, nats.agent(cloud, "two") as two:
        client = wait_until_up(cloud, "one", "two")
        one.kill()
        wait_until_down(cloud, client, "one")
        server = client.wait(client.boot(), status="ACTIVE")
        assert server["OS-EXT-SRV-ATTR:host"] == "two"
        assert host_state(client, "two") == "up"
        one.start()
        wait_until_up(cloud, "one")
        assert two.stop() == 0
        two.start()
        wait_until_up(cloud, "two")
        client.post("compute", f"/servers/{server['id']}/action", {"os-stop": None})
        client.wait(server["id"], status="SHUTOFF")


def test_killed_agent_resumes_boot(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with_nats(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one:
        client = wait_until_up(cloud, "one")
        with sim_store(one) as sim:
            server_id = _wait_for_boot_in_progress(client, sim)
            one.kill()
            Rules(sim).clear()
            one.start()
            # Long before the call times out: the loss of the agent ends the call.
            client.wait(server_id, status="ACTIVE")
            assert [guest.boots for _, guest in sim.all_guests()] == [1]


def test_stopped_agent_neither_waits_for_nor_undoes_boot(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with_nats(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one:
        client = wait_until_up(cloud, "one")
        with sim_store(one) as sim:
            server_id = _wait_for_boot_in_progress(client, sim)
            assert one.stop() == 0
            assert "stopped during commands" in one.log
            Rules(sim).clear()
            one.start()
            client.wait(server_id, status="ACTIVE")


def _wait_for_boot_in_progress(client: Client, sim: SimStore) -> str:
    """Wait until the agent, not only the worker, is in the middle of the boot."""
    rules = Rules(sim)
    rules.add_failure("one", "spawn", "hang", None, None)
    server_id = client.boot()
    wait_until(lambda: rules.all()[0].fired)
    return server_id


def test_restart_of_nats_server_is_survived(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with_nats(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one:
        client = wait_until_up(cloud, "one")
        with sim_store(one) as sim:
            Rules(sim).add_failure("one", "spawn", "hang", None, None)
            server_id = client.boot()
            client.wait(server_id, task_state="spawning")
            nats.stop()
            time.sleep(0.5)
            nats.start()
            Rules(sim).clear()
            client.wait(server_id, status="ACTIVE")
            assert [guest.boots for _, guest in sim.all_guests()] == [1]
        wait_until(lambda: host_state(client, "one") == "up")


def test_processes_connect_when_nats_server_starts_later(nats: NatsServer, tmp_path: Path) -> None:
    nats.stop()
    with cloud_with_nats(nats, tmp_path, "--hosts", "1") as cloud, nats.agent(cloud, "one") as one:
        client = cloud.client("kilonova")
        client.wait(client.boot(), status="ACTIVE")
        assert host_state(client, one.host) is None
        nats.start()
        wait_until_up(cloud, one.host, "sim-001")


def test_killed_control_plane_resumes_boot(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with_nats(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one:
        client = wait_until_up(cloud, "one")
        with sim_store(one) as sim:
            Rules(sim).add_failure("one", "spawn", "hang", None, None)
            server_id = client.boot()
            client.wait(server_id, task_state="spawning")
            cloud.kill()
            cloud.start()
            Rules(sim).clear()
            cloud.client("kilonova").wait(server_id, status="ACTIVE")
            assert [guest.boots for _, guest in sim.all_guests()] == [1]


def test_power_state_changes_of_guests_are_shown(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with_nats(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one, sim_store(one) as sim:
        client = wait_until_up(cloud, "one")
        server_id = client.boot()
        client.wait(server_id, status="ACTIVE")
        for power, shown, number in (
            ("crashed", "SHUTOFF", 6),
            ("running", "ACTIVE", 1),
            ("paused", "PAUSED", 3),
            ("shutdown", "SHUTOFF", 4),
        ):
            sim.set_power("one", server_id, power)  # type: ignore[arg-type]
            client.wait(server_id, status=shown, power_state=number)  # type: ignore[arg-type]
        actions = client.get("compute", f"/servers/{server_id}/os-instance-actions").json()["instanceActions"]
        assert [action["action"] for action in actions] == ["stop", "pause", "start", "stop", "create"]
        path = f"/servers/{server_id}/os-instance-actions/{actions[0]['request_id']}"
        (event,) = client.get("compute", path, version="2.84").json()["instanceAction"]["events"]
        assert (event["result"], event["details"]) == ("Success", "the guest was found shut down")
        client.post("compute", f"/servers/{server_id}/action", {"os-start": None})
        client.wait(server_id, status="ACTIVE")


def test_unknown_guest_is_reported_and_kept(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with_nats(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one, sim_store(one) as sim:
        client = wait_until_up(cloud, "one")
        client.wait(client.boot(), status="ACTIVE")
        data = ("doctor", "--data", str(cloud.data))
        healthy = kilonova(*data, environ=nats.environ)
        assert (healthy.returncode, healthy.stdout) == (0, "Everything agrees.\n"), healthy
        sim.add_guest("one", guest("11111111-2222-3333-4444-555555555555"), "disk")
        wait_until(lambda: "belongs to no server" in cloud.log)
        time.sleep(1.5)
        assert cloud.log.count("belongs to no server") == 1
        metrics = client.request_url("GET", cloud.endpoints["compute"].removesuffix("/compute/v2.1") + "/metrics").body
        assert b'kilonova_unknown_guests{host="one"} 1.0' in metrics
        found = kilonova(*data, "--json", environ=nats.environ)
        assert [finding["kind"] for finding in json.loads(found.stdout)] == ["guest without server"]
        one.kill()
        without_agents = kilonova(*data, environ=nats.environ)
        assert "Guests of one are not compared: no agent is connected for it" in without_agents.stderr
        assert without_agents.returncode == 0, without_agents.stdout
        assert len(sim.all_guests()) == 2


def test_evacuated_guest_is_removed_before_host_is_up(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with_nats(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one, nats.agent(cloud, "two") as two:
        client = wait_until_up(cloud, "one", "two")
        server_id = client.boot()
        host = client.wait(server_id, status="ACTIVE")["OS-EXT-SRV-ATTR:host"]
        failed, other = (one, two) if host == "one" else (two, one)
        failed.kill()
        wait_until_down(cloud, client, host)
        client.post("compute", f"/servers/{server_id}/action", {"evacuate": {}}, version="2.14")
        wait_until(
            lambda: (
                client.get("compute", f"/servers/{server_id}").json()["server"]["OS-EXT-SRV-ATTR:host"] == other.host
            )
        )
        client.wait(server_id, status="ACTIVE")
        with sim_store(failed) as sim:
            assert len(sim.all_guests()) == 1
            failed.start()
            wait_until_up(cloud, host)
            assert sim.all_guests() == []
        with sim_store(other) as sim:
            assert [found.power for _, found in sim.all_guests()] == ["running"]


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_several_workers_receive_reports_of_same_hosts(nats: NatsServer, tmp_path: Path, empty_url: str) -> None:
    data, options = tmp_path / "data", ("--database", empty_url)
    environ = {**nats.environ, "KILONOVA_OPERATIONS__LEASE_SECONDS": "2"}
    first, second = (
        CloudProcess(data, *options, "--hosts", "0", command=("worker",), environ=environ) for _ in range(2)
    )  # fmt: skip
    with CloudProcess(data, *options, command=("api",), environ=nats.environ) as api, first, second:
        with nats.agent(api, "one") as one, sim_store(one) as sim:
            client = wait_until_up(api, "one")
            server_id = client.boot()
            client.wait(server_id, status="ACTIVE")
            sim.set_power("one", server_id, "shutdown")
            client.wait(server_id, status="SHUTOFF")
            time.sleep(1.0)
            actions = client.get("compute", f"/servers/{server_id}/os-instance-actions").json()["instanceActions"]
            assert [action["action"] for action in actions] == ["stop", "create"], (
                "reported to both workers, written once"
            )
            written = get_console(client, server_id).json()["output"]
            assert written.startswith(f"boot 1 of {server_id}\n"), "the API calls the host itself"
            first.kill()
            client.wait(client.boot(), status="ACTIVE")


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_api_without_host_connection_returns_error(tmp_path: Path, empty_url: str) -> None:
    data, options = tmp_path / "data", ("--database", empty_url)
    with (
        CloudProcess(data, *options, "--hosts", "1", command=("worker",)),
        CloudProcess(data, *options, command=("api",)) as api,
    ):
        client = api.client("kilonova")
        server_id = client.boot()
        client.wait(server_id, status="ACTIVE")
        refused = get_console(client, server_id)
        assert refused.status == 503, refused.body
        assert b"messaging" in refused.body


def test_reads_from_host_with_dead_agent_fail_fast(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with_nats(nats, tmp_path) as cloud, nats.agent(cloud, "one") as one:
        client = wait_until_up(cloud, "one")
        server_id = client.boot()
        client.wait(server_id, status="ACTIVE")
        assert get_console(client, server_id).status == 200
        one.kill()
        refused = get_console(client, server_id)
        assert refused.status == 409, refused.body
        assert b"its host does not respond" in refused.body


def test_data_directory_admits_one_agent(nats: NatsServer, tmp_path: Path) -> None:
    with cloud_with_nats(nats, tmp_path) as cloud, nats.agent(cloud, "one"):
        with pytest.raises(NotStarted) as refused:
            nats.agent(cloud, "one").start()
        assert refused.value.code == 3
        assert "is in use by process" in refused.value.output


@pytest.mark.parametrize(
    ("missing", "message"),
    [("KILONOVA_MESSAGING__URL", "messaging.url"), ("KILONOVA_AGENT__IMAGE_URL", "agent.image_url")],
)
def test_agent_reports_missing_settings(tmp_path: Path, missing: str, message: str) -> None:
    environ = {"KILONOVA_MESSAGING__URL": "nats://127.0.0.1:1", "KILONOVA_AGENT__IMAGE_URL": "http://127.0.0.1:1/image"}
    found = kilonova("agent", "--data", str(tmp_path / "data"), environ={**environ, missing: ""})
    assert found.returncode == 1
    assert message in found.stderr
    assert len(found.stderr.splitlines()) == 1
