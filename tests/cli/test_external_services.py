"""Commands for a cloud whose identity, image and network services are those of another process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.support.cloud_process import kilonova
from tests.test_companions import Pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair")) as started:
        yield started


def run(pair: Pair, *arguments: str, **settings: str) -> CompletedProcess[str]:
    environ = {**pair.compute.environ, **settings}
    done = kilonova(*arguments, "--data", str(pair.compute.data), environ=environ)
    assert environ["KILONOVA_IDENTITY__PASSWORD"] not in done.stdout + done.stderr
    return done


def find(pair: Pair) -> list[tuple[str, str]]:
    """Kind and subject of the doctor's findings."""
    done = run(pair, "doctor", "--json")
    assert done.stderr == ""
    return [(finding["kind"], finding["subject"]) for finding in json.loads(done.stdout)]


def boot(pair: Pair) -> str:
    member = pair.client()
    server_id = member.boot()
    member.wait(server_id, status="ACTIVE")
    return server_id


def delete(pair: Pair, server_id: str) -> None:
    member, until = pair.client(), time.monotonic() + 60
    assert member.delete("compute", f"/servers/{server_id}").status == 204
    while member.get("compute", f"/servers/{server_id}").status != 404:
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def server(pair: Pair) -> Iterator[str]:
    server_id = boot(pair)
    yield server_id
    delete(pair, server_id)


def wait_until_settled(pair: Pair) -> None:
    """The doctor skips servers whose operation has just ended."""
    until = time.monotonic() + 60
    while find(pair):
        assert time.monotonic() < until
    time.sleep(1.1)


def test_why_logs_in_at_the_identity_service(pair: Pair, server: str) -> None:
    done = run(pair, "why", server, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["server"]["id"] == server
    refused = run(pair, "why", server, "--cloud", "kilonova-demo")
    assert "--cloud: 'kilonova-demo' is not one of kilonova" in refused.stderr


def test_fit_finds_images_of_the_image_service(pair: Pair) -> None:
    name = pair.client().get("image", "/images").json()["images"][0]["name"]
    done = run(pair, "fit", "--flavor", "1", "--image", name)
    assert done.returncode == 0, done.stderr
    assert "more servers fit" in done.stdout
    assert "Can not find requested image nothing" in run(pair, "fit", "--flavor", "1", "--image", "nothing").stderr
    elsewhere = run(pair, "fit", "--flavor", "1", "--image", name, KILONOVA_IMAGE__URL="http://127.0.0.1:1/v2")
    assert "the cloud does not respond at 127.0.0.1:1" in elsewhere.stderr
    missing = run(pair, "fit", "--flavor", "1", "--image", name, KILONOVA_IDENTITY__REGION="Nowhere")
    assert "the catalogue has no internal endpoint of the type image in the region Nowhere" in missing.stderr


def test_drain_moves_servers(pair: Pair, server: str) -> None:
    host = pair.client("kilonova", "2.96").wait(server, status="ACTIVE")["OS-EXT-SRV-ATTR:host"]
    done = run(pair, "host", "drain", host)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{host} is empty" in done.stdout
    assert run(pair, "operations", "--server", server).returncode == 0


def test_changed_password_of_the_service_user(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        admin = pair.companions.client("kilonova")
        user = admin.get("identity", "/users?name=kilonova").json()["users"][0]["id"]
        changed = admin.request("PATCH", "identity", f"/users/{user}", json={"user": {"password": "another one"}})
        assert changed.status == 200
        refused = run(pair, "why", "any")
        assert refused.returncode == 1
        assert "the login of kilonova was refused" in refused.stderr
        assert "set identity.password and restart" in refused.stderr


def test_doctor_compares_ports(pair: Pair, server: str) -> None:
    wait_until_settled(pair)
    admin, member = pair.client("kilonova"), pair.client()
    other = boot(pair)
    (kept,) = member.get("network", f"/ports?device_id={other}").json()["ports"]
    delete(pair, other)
    (port,) = member.get("network", f"/ports?device_id={server}").json()["ports"]

    def make_port(device_id: str) -> str:
        body = {"network_id": kept["network_id"], "device_owner": "compute:nova", "device_id": device_id}
        created: str = admin.post("network", "/ports", {"port": body}).json()["port"]["id"]
        return created

    leftover, of_others = make_port(other), make_port("11111111-1111-4111-8111-111111111111")
    move = {"port": {"binding:host_id": "elsewhere"}}
    assert admin.put("network", f"/ports/{port['id']}", move).status == 200
    wait_for_findings(pair, {("port without server", leftover), ("port on the wrong host", port["id"])})
    back = {"port": {"binding:host_id": port_host(pair, server)}}
    assert admin.put("network", f"/ports/{port['id']}", back).status == 200
    for port_id in (leftover, of_others):
        assert admin.delete("network", f"/ports/{port_id}").status == 204
    assert find(pair) == []


def test_doctor_compares_volumes(pair: Pair) -> None:
    member = pair.client()
    server_id = boot(pair)
    volume_id = member.post("volume", "/volumes", {"volume": {"size": 1}}).json()["volume"]["id"]
    try:
        until = time.monotonic() + 60
        while member.get("volume", f"/volumes/{volume_id}").json()["volume"]["status"] != "available":
            assert time.monotonic() < until
            time.sleep(0.02)
        attach = {"volumeAttachment": {"volumeId": volume_id}}
        assert member.post("compute", f"/servers/{server_id}/os-volume_attachments", attach).status == 200
        wait_until_settled(pair)
        # This deletes the attachment.
        lost = {"os-reset_status": {"status": "available", "attach_status": "detached"}}
        assert pair.client("kilonova").post("volume", f"/volumes/{volume_id}/action", lost).status == 202
        wait_for_findings(pair, {("device without attachment", server_id)})
    finally:
        delete(pair, server_id)
        member.delete("volume", f"/volumes/{volume_id}")


def wait_for_findings(pair: Pair, expected: set[tuple[str, str]]) -> None:
    until = time.monotonic() + 60
    while set(found := find(pair)) != expected:
        assert time.monotonic() < until, found


def port_host(pair: Pair, server: str) -> Any:
    return pair.client("kilonova", "2.96").get("compute", f"/servers/{server}").json()["server"]["OS-EXT-SRV-ATTR:host"]


def test_doctor_leaves_out_services_that_do_not_respond(pair: Pair, server: str) -> None:
    wait_until_settled(pair)
    away = "http://127.0.0.1:1"
    done = run(pair, "doctor", KILONOVA_NETWORK__URL=away, KILONOVA_IMAGE__URL=away, KILONOVA_VOLUME__URL=away)
    assert (done.returncode, done.stdout) == (0, "Everything agrees.\n"), done.stdout
    parts = {line.partition(": ")[0] for line in done.stderr.splitlines()}
    assert parts == {f"{part} are not compared" for part in ("Ports", "Images", "Volumes")}
    done = run(pair, "doctor", KILONOVA_IDENTITY__AUTH_URL="http://127.0.0.1:1/v3")
    assert done.returncode == 0, done.stdout
    assert "Ports are not compared: 127.0.0.1:1 cannot be reached" in done.stderr


def test_doctor_reads_built_in_services_beside_a_real_keystone(tmp_path: Path) -> None:
    with Pair(tmp_path, KILONOVA_IMAGE__URL="built-in", KILONOVA_NETWORK__URL="built-in") as pair:
        done = run(pair, "doctor", KILONOVA_IDENTITY__AUTH_URL="http://127.0.0.1:1/v3")
        assert done.returncode == 0
        assert "Ports" not in done.stderr
        assert "Images" not in done.stderr
