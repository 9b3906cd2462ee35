"""A share in one server, from its creation to its deletion, and a server that is deleted while Manila is down."""

from __future__ import annotations

from typing import Any

from tests.client_suites.services.process import ServiceProcess
from tests.client_suites.services.scenario import Scenario, wait_for
from tests.support.cloud_process import Client, CloudProcess, Response

SHARE_TYPE = {"name": "default", "extra_specs": {"driver_handles_share_servers": "False"}}


class ManilaScenario(Scenario):
    """`share_id` and `server_id` are those of the current share and server."""

    def __init__(self, cloud: CloudProcess, url: str, api: ServiceProcess) -> None:
        self.cloud = cloud
        self.url = url
        self.api = api
        self.admin = cloud.client("kilonova", version="2.97")
        self.user = cloud.client("kilonova-demo", version="2.97")
        self.share_id = self.server_id = ""

    def test_catalogue_has_manila(self) -> None:
        catalogue = self.user.get("auth_url", "/auth/catalog").json()["catalog"]
        (found,) = (each for each in catalogue if each["type"] == "shared-file-system")
        assert {endpoint["url"] for endpoint in found["endpoints"]} == {f"{self.url}/v2"}, found

    def test_services_report_their_state(self) -> None:
        """Manila's scheduler and share service accept requests once they have reported."""
        path = "/services?state=up"
        services = wait_for(
            lambda: self._call("GET", path, client=self.admin)["services"], lambda found: len(found) == 2
        )
        assert {each["binary"] for each in services} == {"manila-scheduler", "manila-share"}, services

    def test_create_share(self) -> None:
        self._call("POST", "/types", {"share_type": SHARE_TYPE}, client=self.admin)
        self._create_share()

    def test_attached_share_allows_access_to_host(self) -> None:
        self._boot_stopped()
        self._attach()
        (host,) = self.admin.get("compute", "/os-hypervisors/detail").json()["hypervisors"]
        assert self._rules(self.admin) == [host["host_ip"]], self._rules(self.admin)

    def test_user_cannot_read_address_of_host(self) -> None:
        assert self._rules(self.user) == ["******"], self._rules(self.user)

    def test_attached_share_cannot_be_deleted(self) -> None:
        refused = self._request("DELETE", f"/shares/{self.share_id}")
        assert (refused.status, b"prevent delete action" in refused.body) == (403, True), refused.body

    def test_server_starts_and_stops_with_share(self) -> None:
        self._act("os-start", "ACTIVE")
        assert self._attachment() == "active", self._attachment()
        self._act("os-stop", "SHUTOFF")
        assert self._attachment() == "inactive", self._attachment()

    def test_detach_removes_access_and_locks(self) -> None:
        answer = self.user.delete("compute", f"/servers/{self.server_id}/shares/{self.share_id}")
        assert answer.status == 200, answer.body
        wait_for(self._attachment, lambda status: status == "")
        self._expect_no_access()

    def test_delete_detached_share(self) -> None:
        self._call("DELETE", f"/shares/{self.share_id}", expected=202)
        wait_for(lambda: self._request("GET", f"/shares/{self.share_id}").status, lambda status: status == 404)

    def test_deletion_of_server_waits_for_manila(self) -> None:
        self._create_share()
        self._boot_stopped()
        self._attach()
        self.api.kill()
        answer = self.user.delete("compute", f"/servers/{self.server_id}")
        assert answer.status == 204, answer.body
        wait_for(lambda: self.cloud.log, lambda log: "'release shares' is retried" in log)
        self.api.start()
        path = f"/servers/{self.server_id}"
        wait_for(lambda: self.user.get("compute", path).status, lambda status: status == 404)
        self._expect_no_access()

    # Manila

    def _create_share(self) -> None:
        body = {"share": {"share_proto": "NFS", "size": 1, "name": "docs"}}
        self.share_id = self._call("POST", "/shares", body)["share"]["id"]
        path = f"/shares/{self.share_id}"
        share = wait_for(lambda: self._call("GET", path)["share"], lambda each: each["status"] != "creating")
        assert share["status"] == "available", share

    def _rules(self, client: Client) -> list[str]:
        rules = self._call("GET", f"/share-access-rules?share_id={self.share_id}", client=client)["access_list"]
        return [rule["access_to"] for rule in rules]

    def _expect_no_access(self) -> None:
        wait_for(lambda: self._rules(self.user), lambda rules: not rules)
        locks = self._call("GET", "/resource-locks?all_projects=True", client=self.admin)["resource_locks"]
        assert locks == [], locks

    def _call(
        self, method: str, path: str, body: Any = None, *, client: Client | None = None, expected: int = 200
    ) -> Any:
        answer = self._request(method, path, body, client)
        assert answer.status == expected, f"{method} {path}: {answer.status} {answer.body[:2000]!r}"
        return answer.json() if answer.body else None

    def _request(self, method: str, path: str, body: Any = None, client: Client | None = None) -> Response:
        caller = client or self.user
        headers = {"X-Auth-Token": caller.token, "X-OpenStack-Manila-API-Version": "2.82"}
        return caller.request_url(method, f"{self.url}/v2{path}", json=body, headers=headers)

    # The cloud

    def _boot_stopped(self) -> None:
        self.server_id = self.user.boot()
        self.user.wait(self.server_id, status="ACTIVE")
        self._act("os-stop", "SHUTOFF")

    def _act(self, action: str, status: str) -> None:
        answer = self.user.post("compute", f"/servers/{self.server_id}/action", {action: None})
        assert answer.status == 202, answer.body
        self.user.wait(self.server_id, status=status)

    def _attach(self) -> None:
        body = {"share": {"share_id": self.share_id, "tag": "data"}}
        answer = self.user.post("compute", f"/servers/{self.server_id}/shares", body)
        assert answer.status == 201, answer.body
        status = wait_for(self._attachment, lambda status: status != "attaching")
        assert status == "inactive", status

    def _attachment(self) -> str:
        """The status of the share in the server, "" if it is detached."""
        answer = self.user.get("compute", f"/servers/{self.server_id}/shares/{self.share_id}")
        return str(answer.json()["share"]["status"]) if answer.status == 200 else ""
