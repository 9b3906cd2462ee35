"""Processes whose machines' clocks are wrong, differ or step."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.cloud_process import Client, CloudProcess
from tests.support.databases import PostgresServer

HOUR = 3600
# Python runs this module at its start. The file has the seconds by which the clock is wrong.
SITE_CUSTOMIZE = """
import os, time
real = time.time
def wrong():
    with open(os.environ["WRONG_CLOCK"]) as file:
        return real() + float(file.read() or 0)
time.time = wrong
"""


class WrongClock:
    def __init__(self, directory: Path, seconds: int) -> None:
        directory.mkdir()
        (directory / "sitecustomize.py").write_text(SITE_CUSTOMIZE)
        self._file = directory / "seconds"
        self.set(seconds)
        path = os.pathsep.join(filter(None, (str(directory), os.environ.get("PYTHONPATH"))))
        self.environ = {"PYTHONPATH": path, "WRONG_CLOCK": str(self._file)}

    def set(self, seconds: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self._file)


def assert_hosts_are_up(client: Client) -> None:
    services = client.get("compute", "/os-services?binary=nova-compute").json()["services"]
    assert {service["state"] for service in services} == {"up"}


def test_processes_with_clocks_an_hour_apart(tmp_path: Path, postgresql_server: PostgresServer) -> None:
    data, database = tmp_path / "data", ("--database", postgresql_server.url(postgresql_server.create()))
    short_lease = {"KILONOVA_OPERATIONS__LEASE_SECONDS": "2"}
    ahead, behind = WrongClock(tmp_path / "ahead", HOUR), WrongClock(tmp_path / "behind", -HOUR)
    first = CloudProcess(data, *database, command=("worker",), environ=short_lease | ahead.environ)
    second = CloudProcess(data, *database, command=("worker",), environ=short_lease | behind.environ)
    with CloudProcess(data, *database, command=("api",)) as api, first, second:
        client, admin = api.client(), api.client("kilonova")
        for number in range(2):
            client.wait(client.boot(f"web-{number}"), status="ACTIVE")
        assert_hosts_are_up(admin)
        first.kill()
        client.wait(client.boot("after-kill"), status="ACTIVE")
        assert_hosts_are_up(admin)


def test_clock_steps_while_the_cloud_runs_and_while_it_is_stopped(tmp_path: Path) -> None:
    wrong = WrongClock(tmp_path / "wrong", 0)
    with CloudProcess(tmp_path / "data", environ=wrong.environ) as cloud:
        client, admin = cloud.client(), cloud.client("kilonova-system")
        for step in (HOUR, -HOUR, HOUR):
            wrong.set(step)
            client.wait(client.boot(f"after {step}"), status="ACTIVE")
            assert_hosts_are_up(admin)
        cloud.restart()  # now an hour ahead
        client, admin = cloud.client(), cloud.client("kilonova-system")
        assert client.get("compute", "/servers").status == 200
        (user,) = admin.get("identity", "/users?name=demo").json()["users"]
        for enabled in (False, True):
            answer = admin.request("PATCH", "identity", f"/users/{user['id']}", json={"user": {"enabled": enabled}})
            assert answer.status == 200, answer.body
        cloud.stop()
        wrong.set(0)
        cloud.start()
        revoked = client.token
        fresh = cloud.client()
        assert fresh.get("compute", "/servers").status == 200
        assert (
            fresh.request_url("GET", fresh.endpoints["compute"] + "/servers", headers={"X-Auth-Token": revoked}).status
            == 401
        )
        fresh.wait(fresh.boot("after restart"), status="ACTIVE")
        assert_hosts_are_up(cloud.client("kilonova-system"))
