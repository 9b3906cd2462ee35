"""File shares with the stock client: the share service, and the shares of servers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openstack as sdk
import pytest

from tests.support.cloud_process import CloudProcess
from tests.support.openstack_session import TIMEOUT_SECONDS, OpenstackSession

# Deprecation warnings of the SDK itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with CloudProcess(tmp_path_factory.mktemp("shares") / "data", "--hosts", "1") as running:
        yield running


@pytest.fixture
def session(openstack: Path, cloud: CloudProcess, tmp_path: Path) -> Iterator[OpenstackSession]:
    with OpenstackSession(
        openstack, cloud, tmp_path, OS_COMPUTE_API_VERSION="2.97", OS_SHARE_API_VERSION="2.82"
    ) as opened:
        yield opened


def wait(session: OpenstackSession, met: Callable[[], Any]) -> Any:
    until = time.monotonic() + TIMEOUT_SECONDS
    while not (found := met()):
        assert time.monotonic() < until, session.errors.read_text()
        time.sleep(0.05)
    return found


def test_share_commands(session: OpenstackSession) -> None:
    created = session.run_json("share create NFS 1 --name data --property a=b --wait")
    assert (created["status"], created["share_proto"], created["metadata"]) == ("available", "NFS", {"a": "b"})
    assert [share["Name"] for share in session.run_json("share list")] == ["data"]
    (location,) = session.run_json("share export location list data")
    assert str(location["Path"]).endswith(created["id"])
    session.send("share set data --description text")
    session.send("share resize data 2 --wait")
    shown = session.run_json("share show data")
    assert (shown["description"], shown["size"]) == ("text", 2)
    rule = session.run_json("share access create data ip 10.0.0.0/24 --access-level ro")
    assert rule["access_to"] == "10.0.0.0/24"
    assert [each["Access Level"] for each in session.run_json("share access list data")] == ["ro"]
    session.send(f"share access delete data {rule['id']}")
    lock = session.run_json("share lock create data share --reason keep")
    assert [each["Resource Id"] for each in session.run_json("share lock list")] == [created["id"]]
    session.send(f"share lock delete {lock['id']}")
    assert [each["Name"] for each in session.run_json("share type list")] == ["default"]
    assert {each["Binary"] for each in session.run_json("share service list")} == {"manila-scheduler", "manila-share"}
    project = session.run_json("project show admin")["id"]
    assert session.run_json(f"share quota show {project}")["shares"] == 50
    assert session.run_json("share availability zone list")[0]["Name"] == "nova"
    session.send("share delete data --wait")
    wait(session, lambda: session.run_json("share list") == [])


def test_shares_of_servers(session: OpenstackSession, cloud: CloudProcess) -> None:
    session.run_json("share create NFS 1 --name files --wait")
    image = cloud.client("kilonova").get("image", "/images").json()["images"][0]["name"]
    session.run_json(f"server create --flavor m1.tiny --image {image} --network private --wait web")
    session.send("server stop web")
    wait(session, lambda: session.run_json("server show web")["status"] == "SHUTOFF")
    added = session.run_json("server add share web files --tag data")
    assert added["Tag"] == "data"
    wait(session, lambda: session.run_json("server share list web")[0]["Status"] == "inactive")
    session.send("server start web")
    wait(session, lambda: session.run_json("server share show web files")["Status"] == "active")
    session.send("server stop web")
    wait(session, lambda: session.run_json("server show web")["status"] == "SHUTOFF")
    session.send("server remove share web files")
    wait(session, lambda: session.run_json("server share list web") == [])


def test_share_lifecycle_with_the_sdk(cloud: CloudProcess) -> None:
    os.environ.pop("OS_CLOUD", None)
    config = sdk.config.OpenStackConfig(config_files=[str(cloud.data / "clouds.yaml")])
    service = sdk.connection.Connection(config=config.get_one(cloud="kilonova-demo")).shared_file_system
    share = service.create_share(share_protocol="NFS", size=1, name="sdk")
    service.wait_for_status(share, status="available", interval=0.05, wait=120)
    assert [found.id for found in service.shares(details=True, name="sdk")] == [share.id]
    assert service.find_share("sdk").id == share.id
    assert len(list(service.export_locations(share))) == 1
    rule = service.create_access_rule(share.id, access_type="ip", access_to="10.0.0.1", access_level="rw")
    assert [found.id for found in service.access_rules(share)] == [rule.id]
    service.delete_access_rule(rule.id, share.id)
    lock = service.create_resource_lock(resource_id=share.id, resource_type="share")
    assert [found.id for found in service.resource_locks(resource_id=share.id)] == [lock.id]
    service.delete_resource_lock(lock.id)
    service.resize_share(share.id, 2)
    assert service.get_share(share.id).size == 2
    assert [zone.name for zone in service.availability_zones()] == ["nova"]
    service.delete_share(share)
    service.wait_for_delete(share, interval=0.05, wait=120)
