"""Services that answer late, with errors, or never send their events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.openstack.cloud import Cloud
from tests.openstack.kilonova_process import Kilonova, server_body, wait_for
from tests.openstack.proxy import Proxy, matches
from tests.support.cloud_process import Client, Response

Start = Callable[..., AbstractContextManager[Kilonova]]
NO_EVENTS = '"os_compute_api:os-server-external-events:create": "!"\n'
KEYSTONE_DELAY_SECONDS = 2.0


@pytest.fixture
def start(started_kilonova: Kilonova, cloud: Cloud, tmp_path: Path) -> Start:
    """Starts a Kilonova with other settings in the place of the common one."""

    @contextmanager
    def run(**settings: str) -> Iterator[Kilonova]:
        started_kilonova.stop()
        with Kilonova(cloud, tmp_path / "data", environ=settings) as running:
            yield running
            running.delete_servers(300)
            assert running.leftovers() == []
            assert running.doctor() == []

    return run


def boot(admin: Client, count: int = 1, **more: Any) -> Response:
    image = next(each for each in admin.get("image", "/images").json()["images"] if each["name"] == "tiny")
    network = admin.get("network", "/networks?name=shared").json()["networks"][0]
    return admin.post("compute", "/servers", server_body(image, network, min_count=count, max_count=count, **more))


def wait_until_active(admin: Client, count: int) -> list[str]:
    """Wait for this number of ACTIVE servers; returns their ids."""

    def find() -> list[str]:
        servers = admin.get("compute", "/servers/detail").json()["servers"]
        assert all(server["status"] != "ERROR" for server in servers), servers
        active = [server["id"] for server in servers if server["status"] == "ACTIVE"]
        return active if len(active) == len(servers) == count else []

    return wait_for(find, f"{count} servers are ACTIVE", 300)


def test_slow_keystone_delays_only_the_first_request_with_a_token(start: Start, cloud: Cloud) -> None:
    with Proxy(cloud.endpoints["identity"].removesuffix("/v3")) as proxy:
        settings = {"KILONOVA_IDENTITY__AUTH_URL": f"{proxy.url}/v3", "KILONOVA_IDENTITY__TOKEN_CACHE_SECONDS": "300"}
        with start(**settings) as kilonova:
            proxy.delay(KEYSTONE_DELAY_SECONDS)
            admin = kilonova.admin
            assert admin.get("compute", "/servers").status == 200
            before = proxy.count(matches())
            for _ in range(20):
                assert admin.get("compute", "/servers").status == 200
            assert proxy.count(matches()) == before
            assert boot(admin, 3).status == 202
            wait_until_active(admin, 3)
            proxy.reset()


def test_operations_wait_for_a_neutron_that_fails(start: Start, cloud: Cloud) -> None:
    with Proxy(cloud.endpoints["network"]) as proxy, start(KILONOVA_NETWORK__URL=proxy.url) as kilonova:
        admin = kilonova.admin
        assert boot(admin).status == 202
        (server_id,) = wait_until_active(admin, 1)
        before = proxy.count(matches("POST"))
        proxy.fail(500, when=lambda request: request.method in ("POST", "PUT"))
        assert boot(admin, 2).status == 202
        migration = {"os-migrateLive": {"host": None, "block_migration": "auto"}}
        answer = admin.post("compute", f"/servers/{server_id}/action", migration, version="2.93")
        assert answer.status == 202, answer.body
        wait_for(lambda: proxy.count(matches("POST")) >= before + 10, "Neutron has failed several times")
        assert admin.get("compute", "/servers/detail").status == 200
        proxy.reset()
        wait_until_active(admin, 3)
        kilonova.wait_until_idle(300)


def test_answers_of_neutron_that_get_lost_leave_no_second_port(start: Start, cloud: Cloud) -> None:
    with Proxy(cloud.endpoints["network"]) as proxy, start(KILONOVA_NETWORK__URL=proxy.url) as kilonova:
        admin = kilonova.admin
        proxy.fail(500, when=matches("POST", "/ports"), times=2, after_service=True)
        assert boot(admin, 2).status == 202
        for server_id in wait_until_active(admin, 2):
            assert len(admin.get("network", f"/ports?device_id={server_id}").json()["ports"]) == 1


def test_request_is_refused_while_neutron_fails(start: Start, cloud: Cloud) -> None:
    with Proxy(cloud.endpoints["network"]) as proxy, start(KILONOVA_NETWORK__URL=proxy.url) as kilonova:
        admin = kilonova.admin
        proxy.fail(500)
        assert boot(admin).status == 503
        proxy.reset()
        assert admin.get("compute", "/servers").json()["servers"] == []


def test_reimage_ends_without_the_event_of_cinder(start: Start, tmp_path: Path) -> None:
    """The volume is polled. Neutron's events are lost as well, so ports are polled, too."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(NO_EVENTS)
    with start(KILONOVA_POLICY=str(policy)) as kilonova:
        admin = kilonova.admin
        images = {image["name"]: image["id"] for image in admin.get("image", "/images").json()["images"]}
        root = {
            "uuid": images["tiny"],
            "source_type": "image",
            "destination_type": "volume",
            "volume_size": 1,
            "boot_index": 0,
            "delete_on_termination": True,
        }
        assert boot(admin, imageRef="", block_device_mapping_v2=[root]).status == 202
        (server_id,) = wait_until_active(admin, 1)
        path = f"/servers/{server_id}/action"
        answer = admin.post("compute", path, {"rebuild": {"imageRef": images["other"]}}, version="2.93")
        assert answer.status == 202, answer.body
        kilonova.wait_until_idle(300)
        shown = admin.get("compute", f"/servers/{server_id}").json()["server"]
        assert shown["status"] == "ACTIVE", shown.get("fault")
        volume_id = shown["os-extended-volumes:volumes_attached"][0]["id"]
        volume = admin.get("volume", f"/volumes/{volume_id}", version="3.71").json()["volume"]
        assert volume["volume_image_metadata"]["image_id"] == images["other"]
