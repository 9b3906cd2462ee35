"""`kilonova up` as a real process: its files, output and exit codes."""

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

from tests.support.cloud_process import Client, CloudProcess, NotStarted, kilonova

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
    "share": "/share/v2",
}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with CloudProcess(tmp_path_factory.mktemp("up") / "data", fresh=True) as cloud:
        yield cloud


def demo_client(cloud: CloudProcess) -> Client:
    return cloud.client("kilonova-demo")


# Files for clients


def test_endpoints_are_written_and_printed(cloud: CloudProcess) -> None:
    base = cloud.endpoints["compute"].removesuffix("/compute/v2.1")
    assert cloud.endpoints == {name: base + path for name, path in PATHS.items()}
    lines = cloud.output.splitlines()
    printed = dict(line.split(maxsplit=1) for line in lines)
    assert printed.pop("clouds") == str(cloud.data / "clouds.yaml")
    assert printed == {name: url for name, url in cloud.endpoints.items() if name != "auth_url"}
    assert len(lines) == len(PATHS)


def test_port_0_picks_a_free_port(cloud: CloudProcess) -> None:
    port = int(cloud.endpoints["compute"].split(":")[2].split("/")[0])
    assert port not in (0, 8774)
    assert demo_client(cloud).request_url("GET", f"http://127.0.0.1:{port}/healthz").status == 200


def test_placement_port(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data", "--hosts", "0", "--placement-port", "0") as cloud:
        root = cloud.endpoints["placement-root"]
        assert f"placement-root {root}" in " ".join(cloud.output.split())
        client = demo_client(cloud)
        (version,) = client.request_url("GET", f"{root}/").json()["versions"]
        assert version["max_version"] == "1.39"
        for path in ("/healthz", "/compute/v2.1/servers"):
            assert client.request_url("GET", root + path).status in (401, 404)
        taken = CloudProcess(tmp_path / "other", "--placement-port", root.rpartition(":")[2])
        with pytest.raises(NotStarted) as refused:
            taken.start()
        assert refused.value.code == 1
        assert "is in use; choose another with --placement-port" in refused.value.output


@pytest.mark.parametrize("name", CLOUDS)
def test_each_cloud_of_clouds_yaml_gets_a_token(cloud: CloudProcess, name: str) -> None:
    user, project, role = CLOUDS[name]
    assert cloud.clouds.keys() == CLOUDS.keys()
    assert cloud.clouds[name]["region_name"] == "RegionOne"
    assert cloud.clouds[name]["identity_api_version"] == 3
    response = cloud.client(name).log_in()
    assert response.status == 201
    token = response.json()["token"]
    assert token["user"]["name"] == user
    assert token.get("project", {}).get("name") == project
    assert token.get("system", {}) == ({} if project else {"all": True})
    assert role in {granted["name"] for granted in token["roles"]}


def test_files_are_private(cloud: CloudProcess) -> None:
    assert stat.S_IMODE(cloud.data.stat().st_mode) == 0o700
    for path in cloud.data.rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert {"clouds.yaml", "endpoints.json", "secrets.json", "kilonova.log"} <= {p.name for p in cloud.data.iterdir()}


def test_initial_flavors_image_and_network(cloud: CloudProcess) -> None:
    client = demo_client(cloud)
    flavors = {flavor["name"] for flavor in client.get("compute", "/flavors").json()["flavors"]}
    assert {"m1.tiny", "m1.small", "m1.medium", "m1.large", "m1.xlarge"} <= flavors
    images = {image["name"]: image["status"] for image in client.get("image", "/images").json()["images"]}
    assert images["cirros-sim"] == "active"
    networks = {network["name"] for network in client.get("network", "/networks").json()["networks"]}
    assert "private" in networks


def test_catalog_has_every_service(cloud: CloudProcess) -> None:
    client = demo_client(cloud)
    catalogue = client.log_in().json()["token"]["catalog"]
    others = {"block-storage", "volumev3", "shared-file-system", "sharev2"}
    assert {service["type"] for service in catalogue} == PATHS.keys() - {"auth_url", "volume", "share"} | others
    for service in catalogue:
        for endpoint in service["endpoints"]:
            assert client.request_url("GET", endpoint["url"]).status in (200, 300), endpoint["url"]


# Health and metrics


def test_health_and_metrics(cloud: CloudProcess) -> None:
    client = demo_client(cloud)
    base = cloud.endpoints["compute"].removesuffix("/compute/v2.1")
    assert client.get("compute", "/flavors").status == 200
    assert client.request_url("GET", f"{base}/healthz").body == b"ok\n"
    assert client.request_url("GET", f"{base}/readyz").status == 200
    response = client.request_url("GET", f"{base}/metrics")
    text = response.body.decode()
    assert response.headers["content-type"].startswith("text/plain")
    assert 'kilonova_services{program="nova-compute",state="up"} 3.0' in text
    assert 'kilonova_request_seconds_count{code="200",method="GET",route="/compute/flavors"}' in text
    assert "kilonova_operations_queue_age_seconds 0.0" in text


def test_log_has_no_secrets(cloud: CloudProcess) -> None:
    client = demo_client(cloud)
    for _ in range(2):  # a log line is written after its response is sent
        assert client.get("compute", "/servers").status == 200
    log = cloud.log
    assert '"path":"/compute/v2.1/servers"' in log
    assert client.token not in log
    for described in cloud.clouds.values():
        assert described["auth"]["password"] not in log


# Restart, stop, conflicts


def test_restart_keeps_data(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data", fresh=True) as cloud:
        before = cloud.clouds["kilonova-demo"]["auth"]["password"]
        client = demo_client(cloud)
        token = client.token
        assert client.post("compute", "/os-keypairs", {"keypair": {"name": "key"}}).status == 200
        images = client.get("image", "/images").json()["images"]
        cloud.restart()
        assert cloud.clouds["kilonova-demo"]["auth"]["password"] == before
        client = demo_client(cloud)
        names = [entry["keypair"]["name"] for entry in client.get("compute", "/os-keypairs").json()["keypairs"]]
        assert names == ["key"]
        assert [image["id"] for image in client.get("image", "/images").json()["images"]] == [i["id"] for i in images]
        url = cloud.endpoints["compute"] + "/servers"
        assert client.request_url("GET", url, headers={"X-Auth-Token": token}).status == 200, (
            "tokens are valid after a restart"
        )


def test_data_directory_in_use_is_refused(cloud: CloudProcess) -> None:
    refused = kilonova("up", "--data", str(cloud.data), "--port", "0")
    assert refused.returncode == 3
    assert f"{cloud.data} is in use by process {cloud.pid}" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert demo_client(cloud).get("compute", "/servers").status == 200


def test_port_in_use_is_refused(cloud: CloudProcess, tmp_path: Path) -> None:
    port = cloud.endpoints["compute"].split(":")[2].split("/")[0]
    refused = kilonova("up", "--data", str(tmp_path / "other"), "--port", port)
    assert refused.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_process(tmp_path: Path, number: signal.Signals) -> None:
    with CloudProcess(tmp_path / "data") as cloud:
        client = demo_client(cloud)
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
        assert demo_client(cloud).get("compute", "/servers").status == 200


def test_start_after_kill(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data") as cloud:
        cloud.kill()
        cloud.start()
        assert demo_client(cloud).get("compute", "/servers").status == 200


# Options and settings


def test_hosts_are_distributed_over_zones_once(tmp_path: Path) -> None:
    def hosts_by_zone(cloud: CloudProcess) -> dict[str, list[str]]:
        response = cloud.client("kilonova").get("compute", "/os-availability-zone/detail").json()
        zones = {zone["zoneName"]: zone["hosts"] for zone in response["availabilityZoneInfo"]}
        return {name: sorted(hosts) for name, hosts in zones.items() if name != "internal"}

    with CloudProcess(tmp_path / "data", "--hosts", "5", "--zones", "east,west") as cloud:
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


def test_options_override_environment_and_file(tmp_path: Path) -> None:
    file = tmp_path / "kilonova.toml"
    file.write_text("[sim]\nhosts = 2\nvcpus = 7\n[quota]\ninstances = 3\n")
    environ = {"KILONOVA_SIM__HOSTS": "4", "KILONOVA_QUOTA__INSTANCES": "5"}
    with CloudProcess(tmp_path / "data", "--config", str(file), "--hosts", "1", environ=environ) as cloud:
        client = cloud.client("kilonova")
        hypervisors = client.get("compute", "/os-hypervisors/detail").json()["hypervisors"]
        assert [hypervisor["vcpus"] for hypervisor in hypervisors] == [7]
        limits = client.get("compute", "/limits").json()["limits"]["absolute"]
        assert limits["maxTotalInstances"] == 5


@pytest.mark.parametrize(
    "options, environ, code, message",
    [
        ([], {"KILONOVA_DRIVER": "xen"}, 1, "driver: 'xen' is not one of"),
        (["--driver", "xen"], {}, 2, "'--driver'"),
        (["--port", "65536"], {}, 2, "'--port'"),
        (["--port", "web"], {}, 2, "'--port'"),
        (["--hosts", "-1"], {}, 2, "'--hosts'"),
        (["--colour"], {}, 2, "No such option"),
        (["--database", "mysql://root@localhost/nova"], {}, 1, "must begin with sqlite:/// or postgresql://"),
        (["--database", "postgresql://me:hush@127.0.0.1:1/x"], {}, 1, "database: "),
        (["--config", "nowhere.toml"], {}, 1, "nowhere.toml"),
        (["--policy", "nowhere.yaml"], {}, 1, "nowhere.yaml"),
        (["--host", "203.0.113.1", "--insecure"], {}, 1, "cannot listen on 203.0.113.1"),
        (["--host", "203.0.113.1"], {}, 1, "host: the APIs listen on 203.0.113.1 without encryption; set tls_cert"),
        ([], {"KILONOVA_TRUSTED_PROXIES": "10.0.0.1/8"}, 1, "trusted_proxies: 10.0.0.1/8 has host bits set"),
        ([], {"KILONOVA_TLS_CERT": "nowhere.pem"}, 1, "tls_cert: nowhere.pem cannot be read"),
        ([], {"KILONOVA_TLS_KEY": "key.pem"}, 1, "tls_key is set without tls_cert"),
        (["--tls"], {"KILONOVA_TLS_CERT": "cert.pem"}, 1, "set one of them"),
        ([], {"KILONOVA_PORT": "web"}, 1, "port"),
        ([], {"KILONOVA_COLOUR": "red"}, 1, "colour"),
        ([], {"KILONOVA_LOG__LEVEL": "loud"}, 1, "log.level"),
        ([], {"KILONOVA_IMAGE__URL": "http://glance"}, 1, "image.url"),
        ([], {"KILONOVA_SIM": "3", "KILONOVA_SIM__HOSTS": "5"}, 1, "sim is a section"),
        ([], {"KILONOVA_SIM__LATENCY__SPAN": "1"}, 1, "sim.latency"),
        ([], {"KILONOVA_DELAYS__MILLISECONDS": "-1"}, 1, "delays.milliseconds"),
    ],
)
def test_start_errors_are_one_line(
    tmp_path: Path, options: list[str], environ: dict[str, str], code: int, message: str
) -> None:
    port = [] if "--port" in options or "KILONOVA_PORT" in environ else ["--port", "0"]
    refused = kilonova("up", "--data", str(tmp_path / "data"), *port, *options, environ=environ)
    assert refused.returncode == code
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "hush" not in refused.stderr
    assert code == 2 or len(refused.stderr.splitlines()) == 1
    assert not refused.stdout


def test_invalid_config_file(tmp_path: Path) -> None:
    file = tmp_path / "kilonova.toml"
    for content in (b"port = ", b"\xff\xfe", b"[sim]\nhosts = 'many'\n", b"[sim]\nghosts = 3\n", b"port = 70000\n"):
        file.write_bytes(content)
        refused = kilonova("up", "--data", str(tmp_path / "data"), "--config", str(file))
        assert refused.returncode == 1, content
        assert len(refused.stderr.splitlines()) == 1, refused.stderr


def test_unusable_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = kilonova("up", "--data", str(tmp_path / "file" / "data"), "--port", "0")
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["kilonova.db", "secrets.json", "sim.db", "agents.db"])
def test_corrupt_file_is_named(tmp_path: Path, name: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / name).write_bytes(b"no such thing\n" * 100)
    refused = kilonova("up", "--data", str(data), "--port", "0")
    assert refused.returncode == 1
    assert str(data) in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_foreign_database_is_refused(tmp_path: Path) -> None:
    import apsw

    connection = apsw.Connection(str(tmp_path / "other.db"))
    connection.execute("CREATE TABLE accounts (id INTEGER)")
    connection.close()
    with pytest.raises(NotStarted) as refused:
        CloudProcess(tmp_path / "data", "--database", f"sqlite://{tmp_path}/other.db").start()
    assert refused.value.code == 1
    assert "tables of another application" in refused.value.output
    assert len(refused.value.output.splitlines()) == 1


# Start-up time

HEAVY_MODULES = {"sqlalchemy", "alembic", "numpy", "oslo_policy", "aiohttp", "rich", "jsonschema", "yaml", "asyncpg"}


def test_start_imports_no_heavy_modules(tmp_path: Path) -> None:
    """Checks imports instead of time, which depends on the machine."""
    program = f"""
import asyncio, sys
from kilonova import config, datadir
from kilonova.process import running

async def main():
    settings = config.load(flags={{"data": {str(tmp_path / "data")!r}}})
    datadir.prepare(settings.data_dir)
    async with running(settings) as process:
        print(process.ready, *sorted({HEAVY_MODULES!r} & sys.modules.keys()))

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]
