"""Users and operators who move servers about at random, and hosts that come and go; all chances come from a seed."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.process import Cloud

from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import FILE_NAME, SimStore

VERSION = "2.104"
ZONES = ("east", "west")
# By name, the ids.
FLAVORS = {"m1.tiny": "1", "m1.small": "2", "small": "small"}
IN_A_CELL = {"cell": "cell"}
LOOK_EVERY = 0.4
# How often each is asked for, by the status that the server showed last.
WISHES: dict[str, dict[str, int]] = {
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
    "MIGRATING": {"abort": 2, "hurry": 2, "pin": 1},
}
BUSY = {"pin": 6, "delete": 1}


class Trouble:
    """Steps of hosts that fail or take long, and hosts that are cut off for a while."""

    def __init__(self, data: Path, chance: random.Random) -> None:
        self.chance = chance
        self.store = SimStore(data / FILE_NAME)
        self.rules = Rules(self.store)
        self.cut: dict[str, float] = {}

    def begin(self) -> None:
        """So that of three steps in ten one is refused, gets no answer, or is slow."""
        self.rules.add_failure("*", "*", "error", None, "injected", chance=0.1)
        for step in ("spawn", "receive", "expect", "migrate_live", "park", "unpark", "destroy", "discard", "power_off"):
            self.rules.add_failure("*", step, "unreachable", None, None, chance=0.05)
        self.rules.set_latency("*", "*", 0.3, chance=0.15)

    def pass_by(self) -> None:
        """Now and then a host is cut off for some seconds; never so many that nothing can move."""
        now = time.monotonic()
        for host in [host for host, until in self.cut.items() if until < now]:
            self._mend(host)
        if len(self.cut) < 3 and self.chance.random() < 0.03:
            host = self.chance.choice([name for name in self.store.hosts() if name not in self.cut])
            mode = self.chance.choice(("unreachable", "unreachable", "hang"))
            self.rules.add_failure(host, "*", mode, None, "cut off")
            self.cut[host] = now + self.chance.uniform(2.0, 8.0)

    def disks(self) -> dict[str, str]:
        """By server, what tells the content of its disk from others."""
        return {guest.id: guest.disk for _, guest in self.store.all_guests() if not guest.slot}

    def end(self) -> None:
        self.cut.clear()
        self.rules.clear()

    def close(self) -> None:
        self.store.close()

    def _mend(self, host: str) -> None:
        del self.cut[host]
        self.rules.clear(host, "*")


class Users:
    """Sends requests and keeps what was acknowledged; what a kill interrupts may or may not have happened."""

    def __init__(
        self, cloud: Cloud, trouble: Trouble, chance: random.Random, servers: int, cells: dict[str, str] | None
    ) -> None:
        """`cells`: extra specs that ask for a part of a nested provider, where hosts have such."""
        self.cloud = cloud
        self.trouble = trouble
        self.chance = chance
        self.servers = servers
        self.alive: set[str] = set()
        self.deleted: set[str] = set()
        # Server, the API's name of the action, and the request's id.
        self.acknowledged: list[tuple[str, str, str]] = []
        self.answers: Counter[tuple[str, int]] = Counter()
        self.forced: set[str] = set()
        self.seen: dict[str, dict[str, Any]] = {}
        self.look_at = 0.0
        self.client = cloud.client("kilonova", version=VERSION)
        self.image = self.client.get("image", "/images").json()["images"][0]["id"]
        self.flavors = {**FLAVORS, **(IN_A_CELL if cells else {})}
        for name in ("small", "cell") if cells else ("small",):
            flavor = {"name": name, "id": name, "ram": 256, "vcpus": 2, "disk": 1}
            assert self.client.post("compute", "/flavors", {"flavor": flavor}).status == 200
        if cells:
            answer = self.client.post("compute", "/flavors/cell/os-extra_specs", {"extra_specs": cells})
            assert answer.status == 200, answer.body
        group = {"server_group": {"name": "apart", "policy": "anti-affinity"}}
        self.group = self.client.post("compute", "/os-server-groups", group).json()["server_group"]["id"]

    def act(self) -> None:
        """One request, or the end of a connection that a kill has cut."""
        try:
            self.trouble.pass_by()
            self._look()
            self._act()
        except (OSError, http.client.HTTPException, json.JSONDecodeError):
            time.sleep(0.02)
            self._connect()

    def boot_all(self) -> None:
        while len(self.alive) < self.servers:
            self._create()

    def mend(self) -> None:
        """Operators let every host back in. While a host has remains to clear it is refused, and asked for again."""
        self._connect()
        until = time.monotonic() + 60
        while self.forced:
            for host in sorted(self.forced):
                if self._force(host, False) == 200:
                    self.forced.discard(host)
            assert time.monotonic() < until, f"not let in: {self.forced}"
            time.sleep(0.1)

    def _connect(self) -> None:
        try:
            if self.cloud.running:
                self.client = self.cloud.client("kilonova", version=VERSION)
        except (OSError, ValueError):
            pass

    def _look(self) -> None:
        if time.monotonic() < self.look_at:
            return
        answer = self.client.get("compute", "/servers/detail")
        assert answer.status == 200, answer.body
        self.seen = {server["id"]: server for server in answer.json()["servers"]}
        self.look_at = time.monotonic() + LOOK_EVERY

    def _act(self) -> None:
        if len(self.alive) < self.servers and self.chance.random() < 0.3:
            self._create()
        elif self.trouble.cut and self.chance.random() < 0.3:
            self._leave_a_lost_host()
        elif (back := sorted(self.forced - self.trouble.cut.keys())) and self.chance.random() < 0.3:
            if self._force(back[0], False) == 200:
                self.forced.discard(back[0])
        else:
            known = sorted(self.alive & self.seen.keys())
            server = self.seen[self.chance.choice(known)] if known else None
            if server is not None:
                self._wish(server)

    def _wish(self, server: dict[str, Any]) -> None:
        wishes = WISHES.get(server["status"], BUSY)
        if server["OS-EXT-STS:task_state"] and server["status"] != "MIGRATING":
            wishes = BUSY
        what = self.chance.choices(list(wishes), list(wishes.values()))[0]
        getattr(self, f"_{what}")(server)

    def _create(self) -> None:
        flavor = self.chance.choice(list(self.flavors.values()))
        server = {"name": "x", "flavorRef": flavor, "imageRef": self.image, "networks": "auto"}
        if self.chance.random() < 0.4:
            server["availability_zone"] = self.chance.choice(ZONES)
        hints = {"os:scheduler_hints": {"group": self.group}} if self.chance.random() < 0.1 else {}
        answer = self.client.post("compute", "/servers", {"server": server, **hints})
        self.answers["create", answer.status] += 1
        if answer.status == 202:
            self.alive.add(answer.json()["server"]["id"])
            self.acknowledged.append(
                (answer.json()["server"]["id"], "create", answer.headers["x-openstack-request-id"])
            )

    # What is asked of one server

    def _ask(self, server: dict[str, Any], action: str, body: Any, name: str | None = None) -> None:
        answer = self.client.post("compute", f"/servers/{server['id']}/action", {action: body})
        self._note(server, name or action, answer.status, answer.headers, answer.body)

    def _note(self, server: dict[str, Any], name: str, status: int, headers: Any, body: bytes) -> None:
        self.answers[name, status] += 1
        assert status < 500, (name, status, body)
        assert status in (200, 202, 204, 400, 403, 404, 409), (name, status, body)
        if status in (202, 204):
            self.acknowledged.append((server["id"], name, headers["x-openstack-request-id"]))

    def _somewhere(self) -> str:
        return self.chance.choice(sorted(self.trouble.store.hosts()))

    def _migrateLive(self, server: dict[str, Any]) -> None:
        host = self._somewhere() if self.chance.random() < 0.3 else None
        self._ask(server, "os-migrateLive", {"host": host, "block_migration": "auto"}, "live-migration")

    def _migrate(self, server: dict[str, Any]) -> None:
        self._ask(server, "migrate", {"host": self._somewhere()} if self.chance.random() < 0.3 else None)

    def _resize(self, server: dict[str, Any]) -> None:
        others = [flavor for name, flavor in self.flavors.items() if name != server["flavor"]["original_name"]]
        self._ask(server, "resize", {"flavorRef": self.chance.choice(others)})

    def _confirm(self, server: dict[str, Any]) -> None:
        self._ask(server, "confirmResize", None)

    def _revert(self, server: dict[str, Any]) -> None:
        self._ask(server, "revertResize", None)

    def _shelve(self, server: dict[str, Any]) -> None:
        self._ask(server, "shelve", None)

    def _offload(self, server: dict[str, Any]) -> None:
        self._ask(server, "shelveOffload", None)

    def _unshelve(self, server: dict[str, Any]) -> None:
        wish: dict[str, Any] = {}
        if self.chance.random() < 0.3:
            wish["host"] = self._somewhere()
        if self.chance.random() < 0.3:
            wish["availability_zone"] = self.chance.choice((None, *ZONES))
        self._ask(server, "unshelve", wish or None)

    def _rebuild(self, server: dict[str, Any]) -> None:
        self._ask(server, "rebuild", {"imageRef": self.image})

    def _start(self, server: dict[str, Any]) -> None:
        self._ask(server, "os-start", None, "start")

    def _stop(self, server: dict[str, Any]) -> None:
        self._ask(server, "os-stop", None, "stop")

    def _reboot(self, server: dict[str, Any]) -> None:
        self._ask(server, "reboot", {"type": "HARD"})

    def _pin(self, server: dict[str, Any]) -> None:
        zone = self.chance.choice((None, server["OS-EXT-AZ:availability_zone"] or None))
        answer = self.client.put(
            "compute", f"/servers/{server['id']}", {"server": {"pinned_availability_zone": zone, "name": "y"}}
        )
        self._note(server, "pin", answer.status, answer.headers, answer.body)

    def _delete(self, server: dict[str, Any]) -> None:
        self.alive.discard(server["id"])  # should the kill come before the answer, nobody can tell
        answer = self.client.delete("compute", f"/servers/{server['id']}")
        self._note(server, "delete", answer.status, answer.headers, answer.body)
        (self.deleted if answer.status in (204, 404) else self.alive).add(server["id"])

    def _abort(self, server: dict[str, Any]) -> None:
        for number in self._under_way(server):
            answer = self.client.delete("compute", f"/servers/{server['id']}/migrations/{number}")
            self.answers["abort", answer.status] += 1
            assert answer.status in (202, 400, 404, 409), answer.body

    def _hurry(self, server: dict[str, Any]) -> None:
        for number in self._under_way(server):
            path = f"/servers/{server['id']}/migrations/{number}/action"
            answer = self.client.post("compute", path, {"force_complete": None})
            self.answers["force complete", answer.status] += 1
            assert answer.status in (202, 400, 404, 409), answer.body

    def _under_way(self, server: dict[str, Any]) -> list[int]:
        answer = self.client.get("compute", f"/servers/{server['id']}/migrations")
        return [one["id"] for one in answer.json()["migrations"]] if answer.status == 200 else []

    # What operators do about hosts

    def _leave_a_lost_host(self) -> None:
        host = self.chance.choice(sorted(self.trouble.cut))
        there = [one for one in self.seen.values() if one["OS-EXT-SRV-ATTR:host"] == host and one["id"] in self.alive]
        if host not in self.forced and self.chance.random() < 0.1:
            self.forced.add(host)  # whether or not it comes through
            self._force(host, True)
        elif there:
            wish = {"host": self._somewhere()} if self.chance.random() < 0.2 else {}
            self._ask(self.chance.choice(there), "evacuate", wish)

    def _force(self, host: str, down: bool) -> int:
        services = self.client.get("compute", f"/os-services?host={host}&binary=nova-compute").json()["services"]
        answer = self.client.put("compute", f"/os-services/{services[0]['id']}", {"forced_down": down})
        self.answers["force down" if down else "let in", answer.status] += 1
        assert answer.status in (200, 400), answer.body
        return answer.status
