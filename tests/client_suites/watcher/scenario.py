"""Audits of a cloud with two zones, and their action plans: which servers Watcher moves, and which it cannot."""

from __future__ import annotations

import time
from typing import Any, NamedTuple, TypeAlias

from tests.client_suites.services.scenario import Scenario, wait_for
from tests.support.cloud_process import CloudProcess, Response

MODEL = "/data_model/?data_model_type=compute"
FINISHED = ("SUCCEEDED", "FAILED", "CANCELLED")
# How many servers an action plan may move at the same time.
MAX_SERVERS = 10
# The version in which a pinned zone can be removed.
UNPIN_VERSION = "2.104"
# The enabled hosts, and each server with its host and state.
Facts: TypeAlias = tuple[set[str], set[tuple[str, str, str]]]


class Action(NamedTuple):
    """`kind` is that of a migration, or else that of the action. `object` is a server or a host."""

    kind: str
    object: str
    state: str


class WatcherScenario(Scenario):
    """Servers `pinned` and `free` begin on the same host of the zone `east`."""

    def __init__(self, cloud: CloudProcess, url: str) -> None:
        self.url = url
        self.admin = cloud.client("kilonova", version="2.96")
        zones = self.admin.get("compute", "/os-availability-zone/detail").json()["availabilityZoneInfo"]
        hosts = {zone["zoneName"]: sorted(zone["hosts"]) for zone in zones}
        self.east, self.west = hosts["east"], hosts["west"]

    def test_model_has_pinned_zones(self) -> None:
        self._boot("pinned", self.east[0], "east")
        self._boot("free", self.east[0])
        self._boot("stopped", self.east[0])
        self._stop("stopped")
        self._wait_until_model_is_current()
        servers = [each for each in self._call("GET", MODEL)["context"] if "server_name" in each]
        pins = {each["server_name"]: each["server_pinned_az"] for each in servers}
        assert pins == {"pinned": "east", "free": "", "stopped": ""}, pins

    def test_zone_migration_moves_unpinned_servers_only(self) -> None:
        state, actions = self._migrate_host(self.east[0], self.west[0])
        assert state == "FAILED", (state, actions)
        assert actions == [
            Action("cold", "stopped", "SUCCEEDED"),
            Action("live", "free", "SUCCEEDED"),
            Action("live", "pinned", "FAILED"),
        ], actions
        self._expect("free", "ACTIVE", self.west[0])
        self._expect("stopped", "SHUTOFF", self.west[0])
        self._expect("pinned", "ACTIVE", self.east[0], "east")

    def test_zone_migration_moves_pinned_server_within_its_zone(self) -> None:
        self._expect_success(self._migrate_host(*self.east), Action("live", "pinned", "SUCCEEDED"))
        self._expect("pinned", "ACTIVE", self.east[1], "east")

    def test_zone_migration_moves_server_whose_pin_is_removed(self) -> None:
        self._pin("pinned", None)
        self._expect_success(self._migrate_host(self.east[1], self.west[0]), Action("live", "pinned", "SUCCEEDED"))
        self._pin("pinned", "west")
        self._expect("pinned", "ACTIVE", self.west[0], "west")

    def test_host_maintenance_empties_host(self) -> None:
        found = self._audit("cluster_maintaining", "host_maintenance", maintenance_node=self.west[0])
        self._expect_success(
            found,
            Action("change_nova_service_state", self.west[0], "SUCCEEDED"),
            Action("cold", "stopped", "SUCCEEDED"),
            Action("live", "free", "SUCCEEDED"),
            Action("live", "pinned", "SUCCEEDED"),
        )
        service = self._services()[self.west[0]]
        assert (service["status"], service["disabled_reason"]) == ("disabled", "watcher_maintaining"), service
        assert self.west[0] not in {server["OS-EXT-SRV-ATTR:host"] for server in self._servers().values()}
        self._expect("pinned", "ACTIVE", self.west[1], "west")
        self._enable(self.west[0])

    def test_host_maintenance_without_live_migration(self) -> None:
        parameters = {"maintenance_node": self.west[1], "disable_live_migration": True}
        found = self._audit("cluster_maintaining", "host_maintenance", **parameters)
        state, actions = found
        assert state == "SUCCEEDED", found
        assert Action("cold", "pinned", "SUCCEEDED") in actions, actions
        self._expect("pinned", "ACTIVE", self.west[0], "west")
        self._enable(self.west[1])

    def test_consolidation_empties_hosts(self) -> None:
        """Watcher plans live migrations of all servers, and knows no zones: so all servers are active and unpinned."""
        self._delete("stopped")
        self._pin("pinned", None)
        for number, host in enumerate((*self.east, *self.west)):
            self._boot(f"spread-{number}", host)
        assert len(self._used_hosts()) == 4, self._servers()
        state, actions = self._audit("server_consolidation", "node_resource_consolidation")
        assert state == "SUCCEEDED", (state, actions)
        assert len(self._used_hosts()) < 4, self._servers()
        assert {server["status"] for server in self._servers().values()} == {"ACTIVE"}, self._servers()
        # Watcher disables the hosts meanwhile.
        assert {service["status"] for service in self._services().values()} == {"enabled"}, self._services()

    # Watcher

    def _migrate_host(self, source: str, destination: str) -> tuple[str, list[Action]]:
        parameters = {
            "compute_nodes": [{"src_node": source, "dst_node": destination}],
            "parallel_per_node": MAX_SERVERS,
            "parallel_total": MAX_SERVERS,
        }
        return self._audit("hardware_maintenance", "zone_migration", **parameters)

    def _audit(self, goal: str, strategy: str, **parameters: Any) -> tuple[str, list[Action]]:
        """The state of the action plan that the audit recommends, and its actions, sorted, once it is carried out."""
        self._wait_until_model_is_current()
        name = f"{strategy} {time.time()}"
        body = {"audit_type": "ONESHOT", "goal": goal, "strategy": strategy, "parameters": parameters, "name": name}
        audit = self._wait_until_finished(f"/audits/{self._call('POST', '/audits', body)['uuid']}")
        assert audit["state"] == "SUCCEEDED", audit
        (plan,) = self._call("GET", f"/action_plans/?audit_uuid={audit['uuid']}")["action_plans"]
        if plan["state"] == "RECOMMENDED":
            self._call("POST", f"/action_plans/{plan['uuid']}/start")
            plan = self._wait_until_finished(f"/action_plans/{plan['uuid']}")
        actions = self._call("GET", f"/actions/detail?action_plan_uuid={plan['uuid']}")["actions"]
        return plan["state"], sorted(_action(each) for each in actions)

    def _wait_until_finished(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = wait_for(lambda: self._call("GET", path), lambda each: each["state"] in FINISHED)
        return found

    def _wait_until_model_is_current(self) -> None:
        """Wait until Watcher knows the host and state of every server, and which hosts are enabled."""
        wait_for(lambda: (self._model(), self._facts()), lambda both: both[0] == both[1])

    def _model(self) -> Facts | None:
        """None while the decision engine does not answer, because it has just been started."""
        answer = self._request("GET", MODEL)
        if answer.status != 200:
            return None
        context = answer.json()["context"]
        enabled = {each["node_hostname"] for each in context if each["node_status"] == "enabled"}
        servers = [each for each in context if "server_name" in each]
        return enabled, {(each["server_name"], each["node_hostname"], each["server_state"]) for each in servers}

    def _facts(self) -> Facts:
        enabled = {host for host, service in self._services().items() if service["status"] == "enabled"}
        servers = self._servers().values()
        return enabled, {(each["name"], each["OS-EXT-SRV-ATTR:host"], each["OS-EXT-STS:vm_state"]) for each in servers}

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._request(method, path, body)
        assert answer.status < 300, f"{method} {path}: {answer.status} {answer.body[:2000]!r}"
        return answer.json()

    def _request(self, method: str, path: str, body: Any = None) -> Response:
        headers = {"X-Auth-Token": self.admin.token, "OpenStack-API-Version": "infra-optim latest"}
        return self.admin.request_url(method, f"{self.url}/v1{path}", json=body, headers=headers)

    # The cloud

    def _servers(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in self.admin.get("compute", "/servers/detail").json()["servers"]}

    def _services(self) -> dict[str, dict[str, Any]]:
        services = self.admin.get("compute", "/os-services?binary=nova-compute").json()["services"]
        return {each["host"]: each for each in services}

    def _host(self, name: str) -> str:
        host: str = self._servers()[name]["OS-EXT-SRV-ATTR:host"]
        return host

    def _used_hosts(self) -> set[str]:
        return {self._host(name) for name in self._servers()}

    def _boot(self, name: str, host: str, zone: str | None = None) -> None:
        image = self.admin.get("image", "/images").json()["images"][0]["id"]
        server = {"name": name, "flavorRef": "1", "imageRef": image, "networks": "none", "host": host}
        if zone is not None:
            server["availability_zone"] = zone
        answer = self.admin.post("compute", "/servers", {"server": server})
        assert answer.status == 202, answer.body
        self.admin.wait(answer.json()["server"]["id"], status="ACTIVE")

    def _stop(self, name: str) -> None:
        server_id = self._servers()[name]["id"]
        assert self.admin.post("compute", f"/servers/{server_id}/action", {"os-stop": None}).status == 202
        self.admin.wait(server_id, status="SHUTOFF")

    def _delete(self, name: str) -> None:
        assert self.admin.delete("compute", f"/servers/{self._servers()[name]['id']}").status == 204
        wait_for(self._servers, lambda servers: name not in servers)

    def _pin(self, name: str, zone: str | None) -> None:
        path, body = f"/servers/{self._servers()[name]['id']}", {"server": {"pinned_availability_zone": zone}}
        answer = self.admin.put("compute", path, body, version=UNPIN_VERSION)
        assert answer.status == 200, answer.body

    def _enable(self, host: str) -> None:
        path = f"/os-services/{self._services()[host]['id']}"
        assert self.admin.put("compute", path, {"status": "enabled"}).status == 200

    def _expect(self, name: str, status: str, host: str, pin: str | None = None) -> None:
        server = self._servers()[name]
        found = (server["status"], server["OS-EXT-SRV-ATTR:host"], server["pinned_availability_zone"])
        assert found == (status, host, pin), (name, found)

    def _expect_success(self, found: tuple[str, list[Action]], *actions: Action) -> None:
        assert found == ("SUCCEEDED", sorted(actions)), found


def _action(action: dict[str, Any]) -> Action:
    given = action["input_parameters"]
    return Action(given.get("migration_type", action["action_type"]), given["resource_name"], action["state"])
