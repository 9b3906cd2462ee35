"""A backup of a busy cloud: after the restore everything settles, whether the hosts are restored too or lived on."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support.cloud_process import Client, CloudProcess, kilonova
from tests.support.nats_server import AgentProcess, NatsServer
from tests.support.nats_server import nats as nats

from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import SIM_FILE_NAME, SimStore

OPERATIONS = 50
SETTLE_SECONDS = 120.0
SLOW_HOSTS = {f"KILONOVA_SIM__LATENCY__{step}": "1.5" for step in ("SPAWN", "DESTROY", "POWER_OFF", "RECEIVE")}
UNLIMITED = {"KILONOVA_QUOTA__INSTANCES": "-1", "KILONOVA_QUOTA__CORES": "-1", "KILONOVA_QUOTA__RAM": "-1"}


@pytest.mark.parametrize("empty_url", ["sqlite", "postgresql"], indirect=True)
def test_backup_of_a_busy_cloud(tmp_path: Path, empty_url: str) -> None:
    """The hosts are simulated, so the backup has their state of the same moment."""
    seed = int(os.environ.get("BACKUP_SEED", time.time_ns() % 100000))
    print(f"BACKUP_SEED={seed}")
    rng = random.Random(seed)
    options = ["--hosts", "5", "--database", empty_url]
    with CloudProcess(tmp_path / "data", *options, environ={**SLOW_HOSTS, **UNLIMITED}) as cloud:
        client = cloud.client("kilonova-demo-admin", version="2.96")
        servers = {client.boot(f"server-{number}"): "ACTIVE" for number in range(12)}
        settled(client)
        images, volumes = [upload(client) for _ in range(3)], [create_volume(client) for _ in range(3)]
        act_at_random(client, rng, servers, OPERATIONS - 6)

        written = run_command("backup", str(tmp_path / "backup"), "--data", str(cloud.data), "--database", empty_url)
        assert "missing" not in written
        if empty_url.startswith("sqlite"):
            assert count_unfinished(tmp_path / "backup/database.db") >= 5

        for server_id in list(servers)[:4]:
            client.delete("compute", f"/servers/{server_id}")
        later = [client.boot("later") for _ in range(3)]
        for image_id in images:
            assert client.delete("image", f"/images/{image_id}").status == 204
        cloud.kill()
        restored = ("restore", str(tmp_path / "backup"), "--force", "--data", str(cloud.data), "--database", empty_url)
        run_command(*restored)
        cloud.start()

        client = cloud.client("kilonova-demo-admin", version="2.96")
        found = {server["id"]: server["status"] for server in settled(client)}
        assert found == servers
        assert not found.keys() & set(later)
        for image_id in images:
            assert client.get("image", f"/images/{image_id}/file").body == image_id.encode()
        for volume_id in volumes:
            assert volume_status(client, volume_id) == "available"
        assert findings(cloud, "--database", empty_url) == set()


def act_at_random(client: Client, rng: random.Random, servers: dict[str, str], requests: int) -> None:
    """Send requests without waiting for the operations. `servers` gets the statuses that they end in."""
    idle = list(servers)
    rng.shuffle(idle)
    for _ in range(requests):
        if not idle or rng.random() < 0.6:
            servers[client.boot()] = "ACTIVE"
            continue
        server_id = idle.pop()
        action, status = rng.choice(
            [({"os-stop": None}, "SHUTOFF"), ({"resize": {"flavorRef": "2"}}, "VERIFY_RESIZE"), (None, "")]
        )
        if action is None:
            assert client.delete("compute", f"/servers/{server_id}").status == 204
            del servers[server_id]
        else:
            assert client.post("compute", f"/servers/{server_id}/action", action).status == 202
            servers[server_id] = status


def upload(client: Client) -> str:
    body = {"name": "i", "disk_format": "raw", "container_format": "bare"}
    image_id: str = client.post("image", "/images", body, version="2").json()["id"]
    path = f"/images/{image_id}/file"
    assert client.request("PUT", "image", path, content=image_id.encode()).status == 204
    return image_id


def create_volume(client: Client) -> str:
    answer = client.post("volume", "/volumes", {"volume": {"size": 1}}, version="3.60")
    assert answer.status == 202, answer.body
    volume_id: str = answer.json()["volume"]["id"]
    return volume_id


def volume_status(client: Client, volume_id: str) -> str:
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        status: str = client.get("volume", f"/volumes/{volume_id}", version="3.60").json()["volume"]["status"]
        if status != "creating" or time.monotonic() > until:
            return status
        time.sleep(0.05)


def count_unfinished(database: Path) -> int:
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    ((count,),) = connection.execute("SELECT COUNT(*) FROM operations WHERE finished_at IS NULL")
    connection.close()
    return int(count)


def settled(client: Client) -> list[dict[str, Any]]:
    """All servers, once none has an operation under way."""
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        found: list[dict[str, Any]] = client.get("compute", "/servers/detail").json()["servers"]
        busy = [server["id"] for server in found if server["OS-EXT-STS:task_state"] or server["status"] == "BUILD"]
        if not busy:
            return found
        assert time.monotonic() < until, f"stuck: {busy}"
        time.sleep(0.05)


def run_command(*arguments: str, **environ: str) -> str:
    done = kilonova(*arguments, environ=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def findings(cloud: CloudProcess, *options: str) -> set[tuple[str, str]]:
    time.sleep(1.1)  # the doctor leaves out what an operation has changed within the last second
    examined = kilonova("doctor", "--json", "--data", str(cloud.data), *options, environ=cloud.environ)
    return {(finding["kind"], finding["subject"]) for finding in json.loads(examined.stdout)}


# Hosts that live on


@pytest.mark.parametrize("by_hand", [False, True], ids=["restore", "by hand"])
def test_hosts_that_lived_on_accept_a_restored_database(nats: NatsServer, tmp_path: Path, by_hand: bool) -> None:
    backup = tmp_path / "backup"
    with (
        CloudProcess(tmp_path / "data", "--hosts", "0", environ=nats.environ) as cloud,
        nats.agent(cloud, "host-1") as agent,
    ):
        admin = cloud.client("kilonova")
        wait_until_host_is(admin, "up")
        client = cloud.client("kilonova-demo-admin", version="2.96")
        kept, deleted = client.boot("kept"), client.boot("deleted later")
        settled(client)
        make_slow(agent, "spawn", 4.0)
        under_way = client.boot("under way")
        revived = client.boot("deleted later, though it is being built")
        wait_until_spawning(cloud, 2)
        run_command("backup", str(backup), "--data", str(cloud.data))
        assert count_unfinished(backup / "database.db") == 2

        for server_id in (under_way, revived):
            client.wait(server_id, seconds=SETTLE_SECONDS, status="ACTIVE")
        make_slow(agent, "spawn", 0.0)
        created = client.boot("created later")
        settled(client)
        for server_id in (deleted, revived):
            client.delete("compute", f"/servers/{server_id}")
        while len(client.get("compute", "/servers").json()["servers"]) > 3:
            time.sleep(0.05)
        cloud.kill()

        if by_hand:
            for path in cloud.data.glob("kilonova.db*"):
                path.unlink()
            shutil.copy(backup / "database.db", cloud.data / "kilonova.db")
            cloud.start()
            admin = cloud.client("kilonova")
            wait_until_host_is(admin, "down", cloud)
            assert "the database is older than host host-1" in cloud.log
            assert cloud.client("kilonova-demo", version="2.96").get("compute", f"/servers/{kept}").status == 200
            cloud.kill()
            run_command("db", "adopt", "--data", str(cloud.data))
        else:
            run_command("restore", str(backup), "--force", "--data", str(cloud.data))
        cloud.start()
        wait_until_host_is(cloud.client("kilonova"), "up")
        client = cloud.client("kilonova-demo-admin", version="2.96")
        found = {server["id"]: server["status"] for server in settled(client)}
        assert found.keys() == {kept, deleted, under_way, revived}
        assert {found[server_id] for server_id in (kept, under_way, revived)} == {"ACTIVE"}
        assert findings(cloud) == {("guest without server", created), ("guest missing", deleted)}
        guests = run_command("sim", "guests", "--data", str(agent.data))
        assert revived in guests, "the answer of the lost time was not repeated"
        assert created in guests, "guests that the database does not know are left alone"


def wait_until_spawning(cloud: CloudProcess, number: int) -> None:
    """Wait until the host has been chosen: the restored database sees it down until it reports."""
    connection = apsw.Connection(str(cloud.data / "kilonova.db"), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(60_000)
    while connection.execute("SELECT COUNT(*) FROM operations WHERE step = 'spawn'").fetchall() != [(number,)]:
        time.sleep(0.02)
    connection.close()


def make_slow(agent: AgentProcess, step: str, seconds: float) -> None:
    store = SimStore(agent.data / SIM_FILE_NAME)
    Rules(store).set_latency("*", step, seconds, None)
    store.close()


def wait_until_host_is(client: Client, state: str, cloud: CloudProcess | None = None) -> None:
    """`cloud`: also wait until the host has been refused."""
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        services = client.get("compute", "/os-services?binary=nova-compute").json()["services"]
        refused = cloud is None or "is older than host" in cloud.log
        if cloud is not None:
            cloud.set_last_report_back("host-1")
        if [service["state"] for service in services] == [state] and refused:
            return
        assert time.monotonic() < until, services
        time.sleep(0.1)
