"""Random users and operators who move servers, and failing hosts. A seed makes them reproducible."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.cloud_process import CloudProcess

from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import SIM_FILE_NAME, SimStore

VERSION = "2.104"
ZONES = ("east", "west")
# Flavor ids by name.
FLAVORS = {"m1.tiny": "1", "m1.small": "2", "small": "small"}
CELL_FLAVOR = {"cell": "cell"}
REFRESH_SECONDS = 0.4
# Weights of the actions, by the last seen status of the server.
ACTIONS: dict[str, dict[str, int]] = {
    "ACTIVE": {
        "migrateLive": 6,
        "migrate": 3,
        "resize": 4,
        "shelve": 4,
        "rebuild": 2,
        "stop": 1,
        "reboot": 1,
        "pin": 2,
        "delete": 1,
    },
    "SHUTOFF": {"start": 3, "migrate": 2, "resize": 3, "shelve": 2, "rebuild": 1, "pin": 1, "delete": 1},
    "VERIFY_RESIZE": {"confirm": 3, "revert": 3, "pin": 1, "delete": 1},
    "SHELVED": {"unshelve": 2, "offload": 2, "delete": 1},
    "SHELVED_OFFLOADED": {"unshelve": 8, "pin": 1, "delete": 1},
    "ERROR": {"rebuild": 1, "delete": 1},
    "MIGRATING": {"abort": 2, "force_complete": 2, "pin": 1},
}
BUSY_ACTIONS = {"pin": 6, "delete": 1}


class HostFaults:
    """Failing and slow steps of hosts, and hosts that are cut off for a while."""

    def __init__(self, data: Path, rng: random.Random) -> None:
        self.rng = rng
        self.store = SimStore(data / SIM_FILE_NAME)
        self.rules = Rules(self.store)
        self.cut_off_until: dict[str, float] = {}

    def begin(self) -> None:
        """Add rules, so that about three steps in ten fail, get no answer, or are slow."""
        self.rules.add_failure("*", "*", "error", None, "injected", chance=0.1)
        for step in ("spawn", "receive", "expect", "migrate_live", "park", "unpark", "destroy", "discard", "power_off"):
            self.rules.add_failure("*", step, "unreachable", None, None, chance=0.05)
        self.rules.set_latency("*", "*", 0.3, chance=0.15)

    def update(self) -> None:
        """Sometimes cut off a host for some seconds, at most three at a time."""
        now = time.monotonic()
        for host in [host for host, until in self.cut_off_until.items() if until < now]:
            self._reconnect(host)
        if len(self.cut_off_until) < 3 and self.rng.random() < 0.03:
            host = self.rng.choice([name for name in self.store.hosts() if name not in self.cut_off_until])
            mode = self.rng.choice(("unreachable", "unreachable", "hang"))
            self.rules.add_failure(host, "*", mode, None, "cut off")
            self.cut_off_until[host] = now + self.rng.uniform(2.0, 8.0)

    def disks(self) -> dict[str, str]:
        """Return the disk id of each server's guest."""
        return {guest.id: guest.disk for _, guest in self.store.all_guests() if not guest.slot}

    def end(self) -> None:
        self.cut_off_until.clear()
        self.rules.clear()

    def close(self) -> None:
        self.store.close()

    def _reconnect(self, host: str) -> None:
        del self.cut_off_until[host]
        self.rules.clear(host, "*")


class Users:
    """Sends requests and records the acknowledged ones. The result of an interrupted request is unknown."""

    def __init__(
        self,
        cloud: CloudProcess,
        faults: HostFaults,
        rng: random.Random,
        servers: int,
        cell_specs: dict[str, str] | None,
    ) -> None:
        """`cell_specs`: extra specs that request resources of a nested provider, if hosts have any."""
        self.cloud = cloud
        self.faults = faults
        self.rng = rng
        self.servers = servers
        self.alive: set[str] = set()
        self.deleted: set[str] = set()
        # (server id, name of the instance action, request id)
        self.acknowledged: list[tuple[str, str, str]] = []
        self.answers: Counter[tuple[str, int]] = Counter()
        self.forced_down_hosts: set[str] = set()
        self.last_seen: dict[str, dict[str, Any]] = {}
        self.next_refresh_at = 0.0
        self.client = cloud.client("kilonova", version=VERSION)
        self.image = self.client.get("image", "/images").json()["images"][0]["id"]
        self.flavors = {**FLAVORS, **(CELL_FLAVOR if cell_specs else {})}
        for name in ("small", "cell") if cell_specs else ("small",):
            flavor = {"name": name, "id": name, "ram": 256, "vcpus": 2, "disk": 1}
            assert self.client.post("compute", "/flavors", {"flavor": flavor}).status == 200
        if cell_specs:
            answer = self.client.post("compute", "/flavors/cell/os-extra_specs", {"extra_specs": cell_specs})
            assert answer.status == 200, answer.body
        group = {"server_group": {"name": "spread", "policy": "anti-affinity"}}
        self.group = self.client.post("compute", "/os-server-groups", group).json()["server_group"]["id"]

    def act(self) -> None:
        """Send one request. Reconnect if a kill has cut the connection."""
        try:
            self.faults.update()
            self._refresh()
            self._act()
        except (OSError, http.client.HTTPException, json.JSONDecodeError):
            time.sleep(0.02)
            self._connect()

    def boot_all(self) -> None:
        while len(self.alive) < self.servers:
            self._create()

    def clear_forced_down(self) -> None:
        """Clear forced_down of all hosts. It is refused, and retried, while a host has guests to clean up."""
        self._connect()
        until = time.monotonic() + 60
        while self.forced_down_hosts:
            for host in sorted(self.forced_down_hosts):
                if self._set_forced_down(host, False) == 200:
                    self.forced_down_hosts.discard(host)
            assert time.monotonic() < until, f"still forced down: {self.forced_down_hosts}"
            time.sleep(0.1)

    def _connect(self) -> None:
        try:
            if self.cloud.running:
                self.client = self.cloud.client("kilonova", version=VERSION)
        except (OSError, ValueError):
            pass

    def _refresh(self) -> None:
        if time.monotonic() < self.next_refresh_at:
            return
        answer = self.client.get("compute", "/servers/detail")
        assert answer.status == 200, answer.body
        self.last_seen = {server["id"]: server for server in answer.json()["servers"]}
        self.next_refresh_at = time.monotonic() + REFRESH_SECONDS

    def _act(self) -> None:
        if len(self.alive) < self.servers and self.rng.random() < 0.3:
            self._create()
        elif self.faults.cut_off_until and self.rng.random() < 0.3:
            self._evacuate_or_force_down()
        elif (
            reachable := sorted(self.forced_down_hosts - self.faults.cut_off_until.keys())
        ) and self.rng.random() < 0.3:
            if self._set_forced_down(reachable[0], False) == 200:
                self.forced_down_hosts.discard(reachable[0])
        else:
            known = sorted(self.alive & self.last_seen.keys())
            server = self.last_seen[self.rng.choice(known)] if known else None
            if server is not None:
                self._act_on(server)

    def _act_on(self, server: dict[str, Any]) -> None:
        weights = ACTIONS.get(server["status"], BUSY_ACTIONS)
        if server["OS-EXT-STS:task_state"] and server["status"] != "MIGRATING":
            weights = BUSY_ACTIONS
        action = self.rng.choices(list(weights), list(weights.values()))[0]
        getattr(self, f"_{action}")(server)

    def _create(self) -> None:
        flavor = self.rng.choice(list(self.flavors.values()))
        server = {"name": "x", "flavorRef": flavor, "imageRef": self.image, "networks": "auto"}
        if self.rng.random() < 0.4:
            server["availability_zone"] = self.rng.choice(ZONES)
        hints = {"os:scheduler_hints": {"group": self.group}} if self.rng.random() < 0.1 else {}
        answer = self.client.post("compute", "/servers", {"server": server, **hints})
        self.answers["create", answer.status] += 1
        if answer.status == 202:
            self.alive.add(answer.json()["server"]["id"])
            self.acknowledged.append(
                (answer.json()["server"]["id"], "create", answer.headers["x-openstack-request-id"])
            )

    # Actions on one server

    def _post_action(self, server: dict[str, Any], action: str, body: Any, name: str | None = None) -> None:
        answer = self.client.post("compute", f"/servers/{server['id']}/action", {action: body})
        self._record(server, name or action, answer.status, answer.headers, answer.body)

    def _record(self, server: dict[str, Any], name: str, status: int, headers: Any, body: bytes) -> None:
        self.answers[name, status] += 1
        assert status < 500, (name, status, body)
        assert status in (200, 202, 204, 400, 403, 404, 409), (name, status, body)
        if status in (202, 204):
            self.acknowledged.append((server["id"], name, headers["x-openstack-request-id"]))

    def _random_host(self) -> str:
        return self.rng.choice(sorted(self.faults.store.hosts()))

    def _migrateLive(self, server: dict[str, Any]) -> None:
        host = self._random_host() if self.rng.random() < 0.3 else None
        self._post_action(server, "os-migrateLive", {"host": host, "block_migration": "auto"}, "live-migration")

    def _migrate(self, server: dict[str, Any]) -> None:
        self._post_action(server, "migrate", {"host": self._random_host()} if self.rng.random() < 0.3 else None)

    def _resize(self, server: dict[str, Any]) -> None:
        others = [flavor for name, flavor in self.flavors.items() if name != server["flavor"]["original_name"]]
        self._post_action(server, "resize", {"flavorRef": self.rng.choice(others)})

    def _confirm(self, server: dict[str, Any]) -> None:
        self._post_action(server, "confirmResize", None)

    def _revert(self, server: dict[str, Any]) -> None:
        self._post_action(server, "revertResize", None)

    def _shelve(self, server: dict[str, Any]) -> None:
        self._post_action(server, "shelve", None)

    def _offload(self, server: dict[str, Any]) -> None:
        self._post_action(server, "shelveOffload", None)

    def _unshelve(self, server: dict[str, Any]) -> None:
        body: dict[str, Any] = {}
        if self.rng.random() < 0.3:
            body["host"] = self._random_host()
        if self.rng.random() < 0.3:
            body["availability_zone"] = self.rng.choice((None, *ZONES))
        self._post_action(server, "unshelve", body or None)

    def _rebuild(self, server: dict[str, Any]) -> None:
        self._post_action(server, "rebuild", {"imageRef": self.image})

    def _start(self, server: dict[str, Any]) -> None:
        self._post_action(server, "os-start", None, "start")

    def _stop(self, server: dict[str, Any]) -> None:
        self._post_action(server, "os-stop", None, "stop")

    def _reboot(self, server: dict[str, Any]) -> None:
        self._post_action(server, "reboot", {"type": "HARD"})

    def _pin(self, server: dict[str, Any]) -> None:
        zone = self.rng.choice((None, server["OS-EXT-AZ:availability_zone"] or None))
        answer = self.client.put(
            "compute", f"/servers/{server['id']}", {"server": {"pinned_availability_zone": zone, "name": "y"}}
        )
        self._record(server, "pin", answer.status, answer.headers, answer.body)

    def _delete(self, server: dict[str, Any]) -> None:
        self.alive.discard(server["id"])  # the result is unknown if a kill precedes the response
        answer = self.client.delete("compute", f"/servers/{server['id']}")
        self._record(server, "delete", answer.status, answer.headers, answer.body)
        (self.deleted if answer.status in (204, 404) else self.alive).add(server["id"])

    def _abort(self, server: dict[str, Any]) -> None:
        for number in self._migration_ids(server):
            answer = self.client.delete("compute", f"/servers/{server['id']}/migrations/{number}")
            self.answers["abort", answer.status] += 1
            assert answer.status in (202, 400, 404, 409), answer.body

    def _force_complete(self, server: dict[str, Any]) -> None:
        for number in self._migration_ids(server):
            path = f"/servers/{server['id']}/migrations/{number}/action"
            answer = self.client.post("compute", path, {"force_complete": None})
            self.answers["force complete", answer.status] += 1
            assert answer.status in (202, 400, 404, 409), answer.body

    def _migration_ids(self, server: dict[str, Any]) -> list[int]:
        answer = self.client.get("compute", f"/servers/{server['id']}/migrations")
        return [migration["id"] for migration in answer.json()["migrations"]] if answer.status == 200 else []

    # Actions of operators on hosts

    def _evacuate_or_force_down(self) -> None:
        host = self.rng.choice(sorted(self.faults.cut_off_until))
        on_host = [server for server in self.last_seen.values() if server["OS-EXT-SRV-ATTR:host"] == host]
        servers = [server for server in on_host if server["id"] in self.alive]
        if host not in self.forced_down_hosts and self.rng.random() < 0.1:
            self.forced_down_hosts.add(host)  # even if the request fails
            self._set_forced_down(host, True)
        elif servers:
            body = {"host": self._random_host()} if self.rng.random() < 0.2 else {}
            self._post_action(self.rng.choice(servers), "evacuate", body)

    def _set_forced_down(self, host: str, down: bool) -> int:
        services = self.client.get("compute", f"/os-services?host={host}&binary=nova-compute").json()["services"]
        answer = self.client.put("compute", f"/os-services/{services[0]['id']}", {"forced_down": down})
        self.answers["force down" if down else "clear forced down", answer.status] += 1
        assert answer.status in (200, 400), answer.body
        return answer.status
