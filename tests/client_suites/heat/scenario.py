"""Two stacks of a member, from their creation to their deletion. Outcomes are read from the cloud's own services."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.client_suites.services.scenario import Scenario, wait_for
from tests.support.cloud_process import Client, CloudProcess, Response

HERE = Path(__file__).parent
STACK_TIMEOUT_MINUTES = 10
# What a stack may leave behind, by service: the path of a list, and its key.
RESOURCES = {
    "compute": (("/servers", "servers"), ("/os-keypairs", "keypairs"), ("/os-server-groups", "server_groups")),
    "volume": (("/volumes", "volumes"),),
    "network": (
        ("/networks", "networks"),
        ("/subnets", "subnets"),
        ("/ports", "ports"),
        ("/routers", "routers"),
        ("/floatingips", "floatingips"),
        ("/security-groups", "security_groups"),
    ),
}
# What Heat creates in the identity service: users and projects in its domain, their EC2 keys, and trusts.
IDENTITY_RESOURCES = (
    ("/users", "users"),
    ("/projects", "projects"),
    ("/credentials", "credentials"),
    ("/OS-TRUST/trusts", "trusts"),
)


class HeatScenario(Scenario):
    """The stack `web` has servers with what they use, the stack `signals` waits for signals and scales."""

    def __init__(self, cloud: CloudProcess, url: str) -> None:
        self.cloud = cloud
        self.prepare()
        self.url = f"{url}/v1/{self.user.project_id}"
        self.before = self._resources()

    def prepare(self) -> None:
        """Log in: a token of an earlier test may have expired."""
        self.user = self.cloud.client("kilonova-demo")

    def test_create_stack(self) -> None:
        self._create("web", "stack.yaml")
        self._wait("web", "CREATE_COMPLETE")

    def test_server_has_port_and_floating_ip(self) -> None:
        outputs = self._outputs("web")
        server = self._server(outputs["server"])
        assert server["status"] == "ACTIVE", server
        port = self.user.get("network", f"/ports/{outputs['port']}").json()["port"]
        assert port["device_id"] == server["id"], port
        addresses = {each["addr"] for network in server["addresses"].values() for each in network}
        assert addresses == {port["fixed_ips"][0]["ip_address"], outputs["floating_ip"]}, addresses

    def test_server_has_volume(self) -> None:
        outputs = self._outputs("web")
        volume = self._volume(outputs["volume"])
        assert volume["status"] == "in-use", volume
        assert [each["server_id"] for each in volume["attachments"]] == [outputs["server"]], volume

    def test_server_boots_from_volume(self) -> None:
        server = self._server(self._outputs("web")["volume_server"])
        assert (server["status"], server["image"]) == ("ACTIVE", ""), server
        assert len(server["os-extended-volumes:volumes_attached"]) == 1, server

    def test_update_changes_server_and_adds_volume(self) -> None:
        before = self._outputs("web")["server"]
        parameters = {"flavor": "m1.small", "role": "second", "has_second_volume": True}
        body = {"template": _template("stack.yaml"), "parameters": parameters}
        self._call("PUT", self._path("web"), body, expected=202)
        self._wait("web", "UPDATE_COMPLETE")
        outputs = self._outputs("web")
        server = self._server(outputs["server"])
        assert (server["id"], server["status"]) == (before, "ACTIVE"), server
        flavor = self.user.get("compute", f"/flavors/{server['flavor']['id']}").json()["flavor"]
        assert flavor["name"] == "m1.small", flavor
        assert server["metadata"] == {"role": "second"}, server
        volume = self._volume(outputs["second_volume"])
        assert (volume["status"], volume["size"]) == ("available", 2), volume

    def test_check_stack(self) -> None:
        self._act("check")
        self._wait("web", "CHECK_COMPLETE")

    def test_suspend_stack(self) -> None:
        self._act("suspend")
        self._wait("web", "SUSPEND_COMPLETE")
        assert self._server(self._outputs("web")["server"])["status"] == "SUSPENDED"

    def test_resume_stack(self) -> None:
        self._act("resume")
        self._wait("web", "RESUME_COMPLETE")
        assert self._server(self._outputs("web")["server"])["status"] == "ACTIVE"

    def test_create_stack_that_waits_for_signals(self) -> None:
        self._create("signals", "signals.yaml")
        self._wait_for_resource("scale_up", "CREATE_COMPLETE")
        for resource in ("by_signature", "by_aws_signature", "by_token", "deployment"):
            self._wait_for_resource(resource, "CREATE_IN_PROGRESS")

    def test_signal_by_signature(self) -> None:
        """The handle has a URL that is signed with EC2 keys of a user in Heat's domain."""
        url = json.loads(self._outputs("signals")["signature"])["alarm_url"]
        self._signal("PUT", url, {"status": "SUCCESS", "id": "1", "reason": "", "data": ""})
        self._wait_for_resource("by_signature", "CREATE_COMPLETE")

    def test_signal_by_signature_of_aws_handle(self) -> None:
        url = self._outputs("signals")["aws_signature"]
        self._signal("PUT", url, {"Status": "SUCCESS", "UniqueId": "1", "Reason": "", "Data": ""})
        self._wait_for_resource("by_aws_signature", "CREATE_COMPLETE")

    def test_signal_by_token(self) -> None:
        """The handle has a command with a token of a user in Heat's domain."""
        command = self._outputs("signals")["token"]
        (token,) = re.findall(r"X-Auth-Token: ([^']*)'", command)
        (url,) = re.findall(r"http://[^\s']+", command)
        self._signal("POST", url, {"status": "SUCCESS"}, token)
        self._wait_for_resource("by_token", "CREATE_COMPLETE")

    def test_signal_of_deployment_by_user_of_stack(self) -> None:
        """An agent in the guest polls the metadata of its server, and signals, each as a user in Heat's domain."""
        path = f"{self._path('signals')}/resources/configured_server/metadata"
        access = self._call("GET", path)["metadata"]["os-collect-config"]["heat"]
        path = f"/stacks/{access['stack_id']}/resources/{access['resource_name']}/metadata"
        url = self.url.replace(self.user.project_id, access["project_id"]) + path
        agent = self._log_in(access["user_id"], access["password"], access["project_id"])
        answer = self._request("GET", url, None, agent)
        assert answer.status == 200, answer.body
        (deployment,) = answer.json()["metadata"]["deployments"]
        inputs = {each["name"]: each["value"] for each in deployment["inputs"]}
        token = self._log_in(inputs["deploy_user_id"], inputs["deploy_password"], inputs["deploy_project_id"])
        path = f"/stacks/{inputs['deploy_stack_id']}/resources/{inputs['deploy_resource_name']}/signal"
        url = self.url.replace(self.user.project_id, inputs["deploy_project_id"]) + path
        self._signal("POST", url, {"answer": "42", "deploy_status_code": 0}, token)
        self._wait_for_resource("deployment", "CREATE_COMPLETE")

    def test_stack_is_complete_after_signals(self) -> None:
        self._wait("signals", "CREATE_COMPLETE")
        assert self._outputs("signals")["answer"] == "42"

    def test_alarm_scales_after_token_of_user_has_expired(self) -> None:
        """Nobody but Heat takes part: it creates the server with the trust of the stack's user."""
        url = self._outputs("signals")["alarm_url"]
        wait_for(lambda: self.user.get("compute", "/servers").status, lambda status: status == 401)
        self._signal("POST", url, {})
        self.prepare()
        servers = wait_for(self._scaled_servers, lambda servers: len(servers) == 2 and not _has_building(servers))
        assert [each["status"] for each in servers] == ["ACTIVE", "ACTIVE"], servers
        assert {each["user_id"] for each in servers} == {self._user_id()}, servers

    def test_delete_stacks_leaves_nothing(self) -> None:
        for name in ("signals", "web"):
            self._call("DELETE", self._path(name), expected=204)
        for name in ("signals", "web"):
            self._wait_until_deleted(name)
        left = self._resources() - self.before
        assert not left, sorted(left)

    # Stacks

    def _create(self, name: str, template: str) -> None:
        body = {"stack_name": name, "template": _template(template), "timeout_mins": STACK_TIMEOUT_MINUTES}
        self._call("POST", "/stacks", body, expected=201)

    def _act(self, action: str) -> None:
        self._call("POST", f"{self._path('web')}/actions", {action: None}, expected=200)

    def _wait(self, name: str, status: str) -> None:
        wait_for(lambda: self._existing(name)["stack_status"], lambda now: not now.endswith("_IN_PROGRESS"))
        stack = self._existing(name)
        reason = f"{stack['stack_status']}: {stack['stack_status_reason']} {self._failures(name)}"
        assert stack["stack_status"] == status, reason

    def _wait_until_deleted(self, name: str) -> None:
        wait_for(lambda: self._stack(name), lambda stack: stack is None or stack["stack_status"].endswith("_FAILED"))
        assert self._stack(name) is None, self._failures(name)

    def _wait_for_resource(self, resource: str, status: str) -> None:
        # Heat shows a deployment itself only when it has been signalled.
        path = f"{self._path('signals')}/resources"

        def read() -> str:
            resources = {each["resource_name"]: each for each in self._call("GET", path)["resources"]}
            return str(resources.get(resource, {}).get("resource_status"))

        found = wait_for(read, lambda now: now == status or now.endswith("FAILED"))
        assert found == status, self._failures("signals")

    def _stack(self, name: str) -> dict[str, Any] | None:
        headers = {"X-Auth-Token": self.user.token}
        answer = self.user.request_url("GET", f"{self.url}/stacks/{name}", headers=headers)
        if answer.status == 302:  # the URL of a name leads to that of the id
            answer = self.user.request_url("GET", answer.headers["location"], headers=headers)
        if answer.status == 404:
            return None
        assert answer.status == 200, answer.body
        stack: dict[str, Any] = answer.json()["stack"]
        return stack

    def _existing(self, name: str) -> dict[str, Any]:
        stack = self._stack(name)
        assert stack is not None, f"the stack {name} does not exist"
        return stack

    def _path(self, name: str) -> str:
        return f"/stacks/{name}/{self._existing(name)['id']}"

    def _outputs(self, name: str) -> dict[str, Any]:
        return {each["output_key"]: each["output_value"] for each in self._existing(name)["outputs"]}

    def _failures(self, name: str) -> list[str]:
        resources = self._call("GET", f"{self._path(name)}/resources")["resources"]
        return [
            f"{each['resource_name']}: {each['resource_status_reason']}"
            for each in resources
            if each["resource_status"].endswith("FAILED")
        ]

    def _call(self, method: str, path: str, body: Any = None, *, expected: int = 200) -> Any:
        answer = self._request(method, self.url + path, body, self.user.token)
        assert answer.status == expected, f"{method} {path}: {answer.status} {answer.body[:2000]!r}"
        return json.loads(answer.body) if answer.status in (200, 201) else None

    def _request(self, method: str, url: str, body: Any, token: str | None) -> Response:
        headers = {"X-Auth-Token": token} if token else {}
        return self.user.request_url(method, url, json=body, headers=headers)

    def _signal(self, method: str, url: str, body: Mapping[str, Any], token: str | None = None) -> None:
        answer = self._request(method, url, body, token)
        assert answer.status == 200, f"{answer.status} {answer.body[:2000]!r}"

    # The cloud

    def _server(self, server_id: str) -> dict[str, Any]:
        server: dict[str, Any] = self.user.get("compute", f"/servers/{server_id}").json()["server"]
        return server

    def _scaled_servers(self) -> list[dict[str, Any]]:
        servers = self.user.get("compute", "/servers/detail").json()["servers"]
        return [each for each in servers if each["metadata"].get("role") == "scaled"]

    def _volume(self, volume_id: str) -> dict[str, Any]:
        volume: dict[str, Any] = self.user.get("volume", f"/volumes/{volume_id}").json()["volume"]
        return volume

    def _user_id(self) -> str:
        headers = {"X-Subject-Token": self.user.token}
        user_id: str = self.user.get("auth_url", "/auth/tokens", headers=headers).json()["token"]["user"]["id"]
        return user_id

    def _log_in(self, user_id: str, password: str, project_id: str) -> str:
        """A token of a user in Heat's domain."""
        identity = {"methods": ["password"], "password": {"user": {"id": user_id, "password": password}}}
        body = {"auth": {"identity": identity, "scope": {"project": {"id": project_id}}}}
        answer = self.user.request_url("POST", self.cloud.endpoints["auth_url"] + "/auth/tokens", json=body)
        assert answer.status == 201, answer.body
        return answer.headers["x-subject-token"]

    def _resources(self) -> set[str]:
        admin = self.cloud.client("kilonova")
        found = {each for service, lists in RESOURCES.items() for each in _list(self.user, service, lists)}
        return found | set(_list(admin, "auth_url", IDENTITY_RESOURCES))


def _list(client: Client, service: str, lists: tuple[tuple[str, str], ...]) -> list[str]:
    found = []
    for path, key in lists:
        answer = client.get(service, path)
        assert answer.status == 200, f"{path}: {answer.status} {answer.body!r}"
        for each in answer.json()[key]:
            item = each.get("keypair", each)
            found.append(f"{key} {item.get('id') or item['name']}")
    return found


def _has_building(servers: list[dict[str, Any]]) -> bool:
    return any(each["status"] == "BUILD" for each in servers)


def _template(name: str) -> str:
    return (HERE / name).read_text()
