"""`kilonova why` and `kilonova fit` against a running cloud."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kilonova.cli.bars import asked_for, bar, needed
from tests.support.process import KILONOVA, Cloud, kilonova

NOBODY = "11111111-1111-1111-1111-111111111111"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """Two hosts in two zones; a server that runs, and one for which there was no host."""
    small = {"KILONOVA_SIM__VCPUS": "2", "KILONOVA_SIM__MEMORY_MB": "4096", "KILONOVA_SIM__DISK_GB": "50"}
    directory = tmp_path_factory.mktemp("why") / "data"
    unlimited = {f"KILONOVA_QUOTA__{name}": "-1" for name in ("INSTANCES", "CORES", "RAM")}
    with Cloud(directory, "--hosts", "2", "--zones", "az1,az2", environ={**small, **unlimited}) as cloud:
        member = cloud.client("kilonova-demo")
        member.wait(member.boot("web"), status="ACTIVE")
        member.wait(_boot(cloud, "big", "3"), status="ERROR")
        yield cloud


def _boot(cloud: Cloud, name: str, flavor: str) -> str:
    client = cloud.client("kilonova-demo", version="2.37")
    image = client.get("image", "/images").json()["images"][0]["id"]
    server = {"name": name, "flavorRef": flavor, "imageRef": image, "networks": "auto", "availability_zone": "az1"}
    answer = client.post("compute", "/servers", {"server": server})
    assert answer.status == 202, answer.body
    return str(answer.json()["server"]["id"])


def ask(cloud: Cloud, *arguments: str) -> subprocess.CompletedProcess[str]:
    return kilonova(*arguments, "--data", str(cloud.data))


def told(cloud: Cloud, *arguments: str) -> str:
    asked = ask(cloud, *arguments)
    assert asked.returncode == 0, asked.stderr
    return asked.stdout


def test_a_success_names_the_host_and_draws_what_was_free(cloud: Cloud) -> None:
    shown = told(cloud, "why", "web")
    lines = shown.splitlines()
    server = cloud.client("kilonova").get("compute", "/servers/detail?all_tenants=1&name=web").json()["servers"][0]
    host = server["OS-EXT-SRV-ATTR:host"]
    assert lines[0] == f"web ({server['id']}) is ACTIVE on {host}"
    assert "boot: 2 of 2 hosts fit" in shown
    assert "asked for 1 VCPU, 512 MB memory, 1 GB disk" in shown
    (chosen,) = [line for line in lines if line.lstrip().startswith("→")]
    assert chosen.split()[1] == host
    assert "██████████" in chosen


def test_a_failure_tells_need_and_have_of_each_host(cloud: Cloud) -> None:
    shown = told(cloud, "why", "big")
    assert "is ERROR\n" in shown.splitlines()[0] + "\n"
    assert "No valid host was found: 2 hosts: " in shown
    assert "1 not in zone az1" in shown
    assert "lacks 4096 MB memory" in shown
    rows = {line.split()[0]: line for line in shown.splitlines() if line.lstrip().startswith("sim-")}
    assert rows.keys() == {"sim-001", "sim-002"}
    assert any("zone" in row and "az2" in row for row in rows.values())
    assert any("4096 MB memory" in row and "MB memory free of" in row for row in rows.values())


def test_the_id_will_do_and_the_deed_outlives_the_server(cloud: Cloud) -> None:
    member = cloud.client("kilonova-demo")
    identity = _boot(cloud, "short-lived", "1")
    member.wait(identity, status="ACTIVE")
    assert told(cloud, "why", identity).startswith(f"short-lived ({identity}) is ACTIVE")
    assert member.delete("compute", f"/servers/{identity}").status == 204
    until = time.monotonic() + 60
    while member.get("compute", f"/servers/{identity}").status != 404:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert told(cloud, "why", identity, "--all").startswith(f"server ({identity}) is DELETED")


@pytest.mark.parametrize("name", ["web 3", "Zürich ☃", "a.b-c_d (1) [x] $5 100%", "back\\slash", "what?*+|^{2}"])
def test_any_name_will_do(cloud: Cloud, name: str) -> None:
    identity = _boot(cloud, name, "5")
    assert told(cloud, "why", name).startswith(f"{name} ({identity}) is ")
    pattern = ask(cloud, "why", "w.b")
    assert "there is no server 'w.b'" in pattern.stderr


def test_members_see_no_hosts(cloud: Cloud) -> None:
    for server in ("web", "big"):
        shown = told(cloud, "why", server, "--cloud", "kilonova-demo")
        assert "sim-0" not in shown
        assert "FILTER" in shown


def test_json(cloud: Cloud) -> None:
    shown: dict[str, Any] = json.loads(told(cloud, "why", "big", "--json"))
    assert shown["server"]["name"] == "big"
    assert shown["sees"] == "all hosts"
    assert {one["host"] for one in shown["attempts"][0]["rejections"]} == {"sim-001", "sim-002"}
    found = json.loads(told(cloud, "fit", "--flavor", "m1.tiny", "--json"))
    assert found["servers"] == sum(one["servers"] for one in found["hosts"]) > 0


def test_how_many_fit(cloud: Cloud) -> None:
    found = json.loads(told(cloud, "fit", "--flavor", "1", "--json"))
    shown = told(cloud, "fit", "--flavor", "m1.tiny", "--image", "cirros-sim")
    assert shown.startswith(f"{found['servers']} more servers fit: m1.tiny needs 1 VCPU, 512 MB memory, 1 GB disk\n")
    assert "RUNS OUT FIRST" in shown
    assert "MEMORY_MB" in shown
    zoned = told(cloud, "fit", "--flavor", "m1.tiny", "--zone", "az1", "--limit", "0")
    assert f"{found['zones']['az1']} more servers fit in zone az1" in zoned
    assert "sim-001" not in zoned
    none = told(cloud, "fit", "--flavor", "m1.xlarge")
    assert none.startswith("0 more servers fit")
    assert "No valid host was found: 2 hosts: " in none


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("why", "nobody"), "there is no server 'nobody'"),
        (("why", NOBODY), f"there is no server '{NOBODY}'"),
        (("why", "web", "--cloud", "nowhere"), "--cloud: 'nowhere' is none of kilonova, "),
        (("fit", "--flavor", "nothing"), "Flavor nothing could not be found."),
        (("fit", "--flavor", "1", "--zone", "nowhere"), "The requested availability zone is not available"),
        (("fit", "--flavor", "1", "--image", "nothing"), "Can not find requested image nothing."),
        (("fit", "--flavor", "1", "--cloud", "kilonova-demo"), "Policy doesn't allow kilonova:fit to be performed."),
    ],
)
def test_what_cannot_be_answered_is_one_line(cloud: Cloud, arguments: tuple[str, ...], words: str) -> None:
    refused = ask(cloud, *arguments)
    assert refused.returncode == 1
    assert words in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_several_servers_of_a_name(cloud: Cloud) -> None:
    ids = {_boot(cloud, "twin", "1") for _ in range(2)}
    refused = ask(cloud, "why", "twin")
    assert refused.returncode == 1
    assert "2 servers are called 'twin'" in refused.stderr
    assert all(identity in refused.stderr for identity in ids)
    for identity in ids:  # how many more fit is asked by others, twice
        cloud.client("kilonova-demo").wait(identity, status="ACTIVE")


def test_no_cloud_is_running(tmp_path: Path) -> None:
    refused = kilonova("why", "web", "--data", str(tmp_path))
    assert refused.returncode == 1
    assert "no cloud is running in" in refused.stderr


def test_bars_are_as_long_as_the_share() -> None:
    assert bar(10, 10) == "██████████"
    assert bar(0, 10) == "··········"
    assert bar(5, 10) == "█████·····"
    assert bar(1, 16, 2) == "▏·"
    assert bar(20, 10) == "██████████"
    assert bar(1, 0) == "··········"


def test_what_was_asked_for_in_words() -> None:
    asked = {
        "resources": {"VCPU": 1, "CUSTOM_X": 2},
        "groups": {"1": {"VCPU": 2}},
        "zone": "az1",
        "required_traits": ["A", "B"],
    }
    assert asked_for(asked) == "1 VCPU, 2 CUSTOM_X; group 1: 2 VCPU; zone az1; traits A, B"
    assert needed(asked) == {"VCPU": 3, "CUSTOM_X": 2}


def test_names_stay_whole_on_a_narrow_terminal(cloud: Cloud) -> None:
    for arguments in (("why", "big"), ("why", "web"), ("fit", "--flavor", "m1.tiny")):
        narrow = on_terminal(80, *arguments, "--data", str(cloud.data))
        assert "\x1b[" in narrow, "a terminal has colours"
        plain = re.sub(r"\x1b\[[0-9;]*m", "", narrow)
        assert re.search(r"^ +(→ +)?sim-001 ", plain, re.MULTILINE), plain
        wide = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(200, *arguments, "--data", str(cloud.data)))
        assert re.search(r"[█▏▎▍▌▋▊▉·] \d+ of \d+", wide), wide
    assert "\x1b[" not in told(cloud, "why", "big"), "a pipe has none"


def on_terminal(columns: int, *arguments: str) -> str:
    """What a command prints on a terminal of that width."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "NO_COLOR"):
        environ.pop(name, None)
    with subprocess.Popen([KILONOVA, *arguments], stdin=its, stdout=its, stderr=its, env=environ) as process:
        os.close(its)
        printed = b""
        # Reading fails when the last who had the terminal open is gone.
        with contextlib.suppress(OSError):
            while some := os.read(ours, 65536):
                printed += some
    os.close(ours)
    assert process.returncode == 0, printed
    return printed.decode().replace("\r\n", "\n")
