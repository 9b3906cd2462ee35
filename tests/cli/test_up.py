"""`kilonova up` as a user sees it: a real process, its files, its lines, its exit codes."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import Client, Cloud, NotStarted, kilonova

CLOUDS = {
    "kilonova": ("admin", "admin", "admin"),
    "kilonova-system": ("admin", None, "admin"),
    "kilonova-demo": ("demo", "demo", "member"),
    "kilonova-demo-admin": ("demo-admin", "demo", "admin"),
    "kilonova-demo-manager": ("demo-manager", "demo", "manager"),
    "kilonova-demo-reader": ("demo-reader", "demo", "reader"),
}
PATHS = {
    "auth_url": "/identity/v3",
    "identity": "/identity/v3",
    "compute": "/compute/v2.1",
    "placement": "/placement",
    "image": "/image/v2",
    "network": "/network/v2.0",
    "volume": "/volume/v3",
}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with Cloud(tmp_path_factory.mktemp("up") / "data", fresh=True) as cloud:
        yield cloud


def anybody(cloud: Cloud) -> Client:
    return cloud.client("kilonova-demo")


# What it leaves for clients


def test_endpoints_are_written_and_printed(cloud: Cloud) -> None:
    base = cloud.endpoints["compute"].removesuffix("/compute/v2.1")
    assert cloud.endpoints == {name: base + path for name, path in PATHS.items()}
    lines = cloud.output.splitlines()
    printed = dict(line.split(maxsplit=1) for line in lines)
    assert printed.pop("clouds") == str(cloud.data / "clouds.yaml")
    assert printed == {name: url for name, url in cloud.endpoints.items() if name != "auth_url"}
    assert len(lines) == len(PATHS)


def test_port_0_is_a_free_one(cloud: Cloud) -> None:
    port = int(cloud.endpoints["compute"].split(":")[2].split("/")[0])
    assert port not in (0, 8774)
    assert anybody(cloud).plain("GET", f"http://127.0.0.1:{port}/healthz").status == 200


def test_placement_at_a_port_of_its_own(tmp_path: Path) -> None:
    with Cloud(tmp_path / "data", "--hosts", "0", "--placement-port", "0") as cloud:
        root = cloud.endpoints["placement-root"]
        assert f"placement-root {root}" in " ".join(cloud.output.split())
        client = anybody(cloud)
        (version,) = client.plain("GET", f"{root}/").json()["versions"]
        assert version["max_version"] == "1.39"
        for path in ("/healthz", "/compute/v2.1/servers"):
            assert client.plain("GET", root + path).status in (401, 404)
        taken = Cloud(tmp_path / "other", "--placement-port", root.rpartition(":")[2])
        with pytest.raises(NotStarted) as refused:
            taken.start()
        assert refused.value.code == 1
        assert "is in use; choose another with --placement-port" in refused.value.output


@pytest.mark.parametrize("name", CLOUDS)
def test_each_cloud_gets_its_token(cloud: Cloud, name: str) -> None:
    user, project, role = CLOUDS[name]
    assert cloud.clouds.keys() == CLOUDS.keys()
    assert cloud.clouds[name]["region_name"] == "RegionOne"
    assert cloud.clouds[name]["identity_api_version"] == 3
    answer = cloud.client(name).log_in()
    assert answer.status == 201
    token = answer.json()["token"]
    assert token["user"]["name"] == user
    assert token.get("project", {}).get("name") == project
    assert token.get("system", {}) == ({} if project else {"all": True})
    assert role in {held["name"] for held in token["roles"]}


def test_everything_is_private(cloud: Cloud) -> None:
    assert stat.S_IMODE(cloud.data.stat().st_mode) == 0o700
    for path in cloud.data.rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert {"clouds.yaml", "endpoints.json", "secrets.json", "kilonova.log"} <= {p.name for p in cloud.data.iterdir()}


def test_there_is_something_to_boot(cloud: Cloud) -> None:
    client = anybody(cloud)
    flavors = {flavor["name"] for flavor in client.get("compute", "/flavors").json()["flavors"]}
    assert {"m1.tiny", "m1.small", "m1.medium", "m1.large", "m1.xlarge"} <= flavors
    images = {image["name"]: image["status"] for image in client.get("image", "/images").json()["images"]}
    assert images["cirros-sim"] == "active"
    networks = {network["name"] for network in client.get("network", "/networks").json()["networks"]}
    assert "private" in networks


def test_the_catalogue_leads_to_every_service(cloud: Cloud) -> None:
    client = anybody(cloud)
    catalogue = client.log_in().json()["token"]["catalog"]
    volumes = {"block-storage", "volumev3"}
    assert {service["type"] for service in catalogue} == PATHS.keys() - {"auth_url", "volume"} | volumes
    for service in catalogue:
        for endpoint in service["endpoints"]:
            assert client.plain("GET", endpoint["url"]).status in (200, 300), endpoint["url"]


# Pages for machines


def test_health_and_metrics(cloud: Cloud) -> None:
    client = anybody(cloud)
    base = cloud.endpoints["compute"].removesuffix("/compute/v2.1")
    assert client.get("compute", "/flavors").status == 200
    assert client.plain("GET", f"{base}/healthz").body == b"ok\n"
    assert client.plain("GET", f"{base}/readyz").status == 200
    answer = client.plain("GET", f"{base}/metrics")
    text = answer.body.decode()
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'kilonova_services{program="nova-compute",state="up"} 3.0' in text
    assert 'kilonova_request_seconds_count{code="200",method="GET",route="/compute/flavors"}' in text
    assert "kilonova_operations_queue_age_seconds 0.0" in text


def test_secrets_stay_out_of_the_log(cloud: Cloud) -> None:
    client = anybody(cloud)
    for _ in range(2):  # a line is written after its answer is sent
        assert client.get("compute", "/servers").status == 200
    log = cloud.log
    assert '"path":"/compute/v2.1/servers"' in log
    assert client.token not in log
    for described in cloud.clouds.values():
        assert described["auth"]["password"] not in log


# Starting again, stopping, being in the way


def test_a_second_start_goes_on(tmp_path: Path) -> None:
    with Cloud(tmp_path / "data", fresh=True) as cloud:
        before = cloud.clouds["kilonova-demo"]["auth"]["password"]
        client = anybody(cloud)
        token = client.token
        assert client.post("compute", "/os-keypairs", {"keypair": {"name": "kept"}}).status == 200
        images = client.get("image", "/images").json()["images"]
        cloud.restart()
        assert cloud.clouds["kilonova-demo"]["auth"]["password"] == before
        client = anybody(cloud)
        names = [entry["keypair"]["name"] for entry in client.get("compute", "/os-keypairs").json()["keypairs"]]
        assert names == ["kept"]
        assert [image["id"] for image in client.get("image", "/images").json()["images"]] == [i["id"] for i in images]
        url = cloud.endpoints["compute"] + "/servers"
        assert client.plain("GET", url, headers={"X-Auth-Token": token}).status == 200, "tokens outlive the process"


def test_a_directory_in_use_is_refused(cloud: Cloud) -> None:
    refused = kilonova("up", "--data", str(cloud.data), "--port", "0")
    assert refused.returncode == 3
    assert f"{cloud.data} is in use by process {cloud.pid}" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert anybody(cloud).get("compute", "/servers").status == 200


def test_a_port_in_use_is_refused(cloud: Cloud, tmp_path: Path) -> None:
    port = cloud.endpoints["compute"].split(":")[2].split("/")[0]
    refused = kilonova("up", "--data", str(tmp_path / "other"), "--port", port)
    assert refused.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with Cloud(tmp_path / "data") as cloud:
        client = anybody(cloud)
        assert client.get("compute", "/servers").status == 200  # leaves a connection open
        host, port = cloud.endpoints["compute"].split("/")[2].split(":")
        with socket.create_connection((host, int(port))) as idle:
            idle.sendall(b"GET /compute/")  # a request that never ends
            began = time.monotonic()
            os.kill(cloud.pid, number)
            assert cloud.process is not None
            assert cloud.process.wait(60) == 0
            assert time.monotonic() - began < 30
        assert "Traceback" not in cloud.output + cloud.log
        cloud.start()
        assert anybody(cloud).get("compute", "/servers").status == 200


def test_killed_it_starts_again(tmp_path: Path) -> None:
    with Cloud(tmp_path / "data") as cloud:
        cloud.kill()
        cloud.start()
        assert anybody(cloud).get("compute", "/servers").status == 200


# Options and settings


def test_hosts_are_spread_over_zones_once(tmp_path: Path) -> None:
    def hosts_by_zone(cloud: Cloud) -> dict[str, list[str]]:
        answer = cloud.client("kilonova").get("compute", "/os-availability-zone/detail").json()
        zones = {zone["zoneName"]: zone["hosts"] for zone in answer["availabilityZoneInfo"]}
        return {name: sorted(hosts) for name, hosts in zones.items() if name != "internal"}

    with Cloud(tmp_path / "data", "--hosts", "5", "--zones", "east,west") as cloud:
        before = hosts_by_zone(cloud)
        assert before.keys() == {"east", "west"}
        assert sorted(map(len, before.values())) == [2, 3]
        cloud.restart()
        assert hosts_by_zone(cloud) == before
        cloud.stop()
        cloud.start("--hosts", "6")
        after = hosts_by_zone(cloud)
        assert sorted(map(len, after.values())) == [3, 3]
        assert all(set(hosts) <= set(after[zone]) for zone, hosts in before.items())


def test_a_file_the_environment_and_options_in_this_order(tmp_path: Path) -> None:
    file = tmp_path / "kilonova.toml"
    file.write_text("[sim]\nhosts = 2\nvcpus = 7\n[quota]\ninstances = 3\n")
    environ = {"KILONOVA_SIM__HOSTS": "4", "KILONOVA_QUOTA__INSTANCES": "5"}
    with Cloud(tmp_path / "data", "--config", str(file), "--hosts", "1", environ=environ) as cloud:
        client = cloud.client("kilonova")
        hypervisors = client.get("compute", "/os-hypervisors/detail").json()["hypervisors"]
        assert [hypervisor["vcpus"] for hypervisor in hypervisors] == [7]
        limits = client.get("compute", "/limits").json()["limits"]["absolute"]
        assert limits["maxTotalInstances"] == 5


@pytest.mark.parametrize(
    "options, environ, code, words",
    [
        ([], {"KILONOVA_DRIVER": "xen"}, 1, "there is no driver 'xen'"),
        (["--driver", "xen"], {}, 2, "'--driver'"),
        (["--port", "65536"], {}, 2, "'--port'"),
        (["--port", "web"], {}, 2, "'--port'"),
        (["--hosts", "-1"], {}, 2, "'--hosts'"),
        (["--colour"], {}, 2, "No such option"),
        (["--database", "mysql://root@localhost/nova"], {}, 1, "must begin with sqlite:/// or postgresql://"),
        (["--database", "postgresql://me:hush@127.0.0.1:1/x"], {}, 1, "database: "),
        (["--config", "nowhere.toml"], {}, 1, "nowhere.toml"),
        (["--policy", "nowhere.yaml"], {}, 1, "nowhere.yaml"),
        (["--host", "203.0.113.1"], {}, 1, "cannot listen on 203.0.113.1"),
        ([], {"KILONOVA_PORT": "web"}, 1, "port"),
        ([], {"KILONOVA_COLOUR": "red"}, 1, "colour"),
        ([], {"KILONOVA_LOG__LEVEL": "loud"}, 1, "log.level"),
        ([], {"KILONOVA_IMAGE__URL": "http://glance"}, 1, "image.url"),
        ([], {"KILONOVA_SIM": "3", "KILONOVA_SIM__HOSTS": "5"}, 1, "sim is a section"),
        ([], {"KILONOVA_SIM__LATENCY__SPAN": "1"}, 1, "sim.latency"),
        ([], {"KILONOVA_DELAYS__MILLISECONDS": "-1"}, 1, "delays.milliseconds"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    tmp_path: Path, options: list[str], environ: dict[str, str], code: int, words: str
) -> None:
    port = [] if "--port" in options or "KILONOVA_PORT" in environ else ["--port", "0"]
    refused = kilonova("up", "--data", str(tmp_path / "data"), *port, *options, environ=environ)
    assert refused.returncode == code
    assert words in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "hush" not in refused.stderr
    assert code == 2 or len(refused.stderr.splitlines()) == 1
    assert not refused.stdout


def test_a_config_file_that_is_no_toml(tmp_path: Path) -> None:
    file = tmp_path / "kilonova.toml"
    for content in (b"port = ", b"\xff\xfe", b"[sim]\nhosts = 'many'\n", b"[sim]\nghosts = 3\n", b"port = 70000\n"):
        file.write_bytes(content)
        refused = kilonova("up", "--data", str(tmp_path / "data"), "--config", str(file))
        assert refused.returncode == 1, content
        assert len(refused.stderr.splitlines()) == 1, refused.stderr


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = kilonova("up", "--data", str(tmp_path / "file" / "data"), "--port", "0")
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["kilonova.db", "secrets.json", "sim.db", "agents.db"])
def test_a_spoilt_file_is_named(tmp_path: Path, name: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / name).write_bytes(b"no such thing\n" * 100)
    refused = kilonova("up", "--data", str(data), "--port", "0")
    assert refused.returncode == 1
    assert str(data) in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_database_of_something_else(tmp_path: Path) -> None:
    import apsw

    connection = apsw.Connection(str(tmp_path / "other.db"))
    connection.execute("CREATE TABLE accounts (id INTEGER)")
    connection.close()
    with pytest.raises(NotStarted) as refused:
        Cloud(tmp_path / "data", "--database", f"sqlite://{tmp_path}/other.db").start()
    assert refused.value.code == 1
    assert "something else" in refused.value.output
    assert len(refused.value.output.splitlines()) == 1


# Speed

LATE = {"sqlalchemy", "alembic", "numpy", "oslo_policy", "httpx", "rich", "jsonschema", "yaml", "asyncpg"}


def test_nothing_heavy_is_loaded_before_answers_are_possible(tmp_path: Path) -> None:
    """How long it takes depends on the machine; what is imported does not."""
    program = f"""
import asyncio, sys
from kilonova import config, datadir
from kilonova.process import running

async def main():
    settings = config.load(flags={{"data": {str(tmp_path / "data")!r}}})
    datadir.prepare(settings.data_dir)
    async with running(settings) as process:
        print(process.ready, *sorted({LATE!r} & sys.modules.keys()))

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]
