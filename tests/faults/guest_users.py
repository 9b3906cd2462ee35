"""Users of real guests, who ask for anything at random, and what breaks below them; all chances come from a seed."""

from __future__ import annotations

import http.client
import json
import os
import random
import subprocess
import threading
import time
from collections import Counter
from typing import Any

from tests.support.process import Response
from tests.support.virt_cloud import RealCloud

VERSION = "2.96"
LOOK_EVERY = 0.5
# How often each is asked for, by the status that the server showed last.
WISHES: dict[str, dict[str, int]] = {
    "ACTIVE": {
        "live": 6,
        "migrate": 3,
        "resize": 3,
        "shelve": 2,
        "rebuild": 2,
        "snapshot": 2,
        "stop": 2,
        "reboot": 2,
        "pause": 2,
        "suspend": 2,
        "rescue": 1,
        "attach": 3,
        "delete": 1,
    },
    # Only then, as the system of a micro guest does not let devices go.
    "SHUTOFF": {
        "start": 6,
        "migrate": 2,
        "resize": 2,
        "shelve": 1,
        "rebuild": 1,
        "attach": 2,
        "detach": 2,
        "delete": 1,
    },
    "PAUSED": {"unpause": 4, "live": 1, "shelve": 1, "delete": 1},
    "SUSPENDED": {"resume": 4, "shelve": 1, "delete": 1},
    "RESCUE": {"unrescue": 4, "delete": 1},
    "VERIFY_RESIZE": {"confirm": 3, "revert": 3, "delete": 1},
    "SHELVED": {"unshelve": 2, "offload": 2, "delete": 1},
    "SHELVED_OFFLOADED": {"unshelve": 8, "delete": 1},
    "ERROR": {"reboot": 1, "delete": 3},
    "MIGRATING": {"abort": 1, "hurry": 1, "nothing": 8},
}
BUSY = {"nothing": 60, "delete": 1}
REFUSED = (400, 403, 404, 409)
# What one image holds beside the guest's system, so that there is time for faults while it is copied.
CARGO_BYTES = 32 << 20


class GuestUsers:
    """Keeps what was acknowledged; what a kill interrupts may or may not have happened."""

    def __init__(
        self, cloud: RealCloud, chance: random.Random, servers: int, volumes: int, networks: list[str]
    ) -> None:
        self.cloud = cloud
        self.chance = chance
        self.servers = servers
        self.networks = networks
        self.images = [_image(cloud, "red"), _image(cloud, "laden", 6, more=CARGO_BYTES)]
        self.flavors = [cloud.flavor("micro"), cloud.flavor("larger", ram=80, disk=1)]
        self.client = cloud.control.client("kilonova", VERSION)
        self.alive: set[str] = set()
        self.deleted: set[str] = set()
        self.answers: Counter[tuple[str, int]] = Counter()
        self.seen: dict[str, dict[str, Any]] = {}
        self.look_at = 0.0
        self.volumes = [self._make_volume() for _ in range(volumes)]

    def boot_all(self) -> None:
        while len(self.alive) < self.servers:
            self._create()

    def act(self) -> None:
        """One request, or the end of a connection that a kill has cut."""
        try:
            if time.monotonic() > self.look_at:
                servers = self.client.get("compute", "/servers/detail").json()["servers"]
                self.seen = {server["id"]: server for server in servers}
                self.look_at = time.monotonic() + LOOK_EVERY
            if len(self.alive) < self.servers:
                self._create()
            known = sorted(self.alive & self.seen.keys())
            if known:
                self._wish(self.seen[self.chance.choice(known)])
        except (OSError, http.client.HTTPException, json.JSONDecodeError):
            time.sleep(0.05)
            self.connect()

    def connect(self) -> None:
        try:
            if self.cloud.control.running:
                self.client = self.cloud.control.client("kilonova", VERSION)
        except (OSError, ValueError):
            pass

    def evacuate(self, host: str) -> None:
        """Everybody whom we know of on a host that seems lost."""
        for server in list(self.seen.values()):
            if server["OS-EXT-SRV-ATTR:host"] == host and self.chance.random() < 0.7:
                try:
                    self._ask(server, "evacuate", {})
                except (OSError, http.client.HTTPException, json.JSONDecodeError):
                    return

    def _wish(self, server: dict[str, Any]) -> None:
        busy = server["OS-EXT-STS:task_state"] and server["status"] != "MIGRATING"
        wishes = BUSY if busy else WISHES.get(server["status"], BUSY)
        what = self.chance.choices(list(wishes), list(wishes.values()))[0]
        getattr(self, f"_{what}")(server)

    def _nothing(self, server: dict[str, Any]) -> None:
        pass

    def _create(self) -> None:
        image = self.chance.choice(self.images)
        server: dict[str, Any] = {"name": "x", "flavorRef": self.chance.choice(self.flavors), "networks": "none"}
        if self.networks and self.chance.random() < 0.5:
            server["networks"] = [{"uuid": self.chance.choice(self.networks)}]
        if self.chance.random() < 0.3:
            server["config_drive"] = True
        if self.chance.random() < 0.3:
            device = {"boot_index": 0, "source_type": "image", "uuid": image, "destination_type": "volume"}
            server["block_device_mapping_v2"] = [{**device, "volume_size": 1, "delete_on_termination": True}]
        else:
            server["imageRef"] = image
        answer = self.client.post("compute", "/servers", {"server": server})
        self._count("create", answer)
        if answer.status == 202:
            self.alive.add(answer.json()["server"]["id"])

    # What is asked of one server

    def _ask(self, server: dict[str, Any], action: str, body: Any = None) -> None:
        self._count(action, self.client.post("compute", f"/servers/{server['id']}/action", {action: body}))

    def _count(self, name: str, answer: Response) -> None:
        self.answers[name, answer.status] += 1
        assert answer.status in (200, 202, 204, *REFUSED), (name, answer.status, answer.body)

    def _live(self, server: dict[str, Any]) -> None:
        self._ask(server, "os-migrateLive", {"host": None, "block_migration": "auto"})

    def _migrate(self, server: dict[str, Any]) -> None:
        self._ask(server, "migrate")

    def _resize(self, server: dict[str, Any]) -> None:
        name = server["flavor"]["original_name"]
        self._ask(server, "resize", {"flavorRef": self.flavors[1 if name == "micro" else 0]})

    def _confirm(self, server: dict[str, Any]) -> None:
        self._ask(server, "confirmResize")

    def _revert(self, server: dict[str, Any]) -> None:
        self._ask(server, "revertResize")

    def _shelve(self, server: dict[str, Any]) -> None:
        self._ask(server, "shelve")

    def _offload(self, server: dict[str, Any]) -> None:
        self._ask(server, "shelveOffload")

    def _unshelve(self, server: dict[str, Any]) -> None:
        self._ask(server, "unshelve")

    def _rebuild(self, server: dict[str, Any]) -> None:
        self._ask(server, "rebuild", {"imageRef": self.chance.choice(self.images)})

    def _snapshot(self, server: dict[str, Any]) -> None:
        self._ask(server, "createImage", {"name": "snapshot"})

    def _start(self, server: dict[str, Any]) -> None:
        self._ask(server, "os-start")

    def _stop(self, server: dict[str, Any]) -> None:
        self._ask(server, "os-stop")

    def _reboot(self, server: dict[str, Any]) -> None:
        self._ask(server, "reboot", {"type": self.chance.choice(("HARD", "SOFT"))})

    def _pause(self, server: dict[str, Any]) -> None:
        self._ask(server, "pause")

    def _unpause(self, server: dict[str, Any]) -> None:
        self._ask(server, "unpause")

    def _suspend(self, server: dict[str, Any]) -> None:
        self._ask(server, "suspend")

    def _resume(self, server: dict[str, Any]) -> None:
        self._ask(server, "resume")

    def _rescue(self, server: dict[str, Any]) -> None:
        self._ask(server, "rescue", {"rescue_image_ref": self.images[0]})

    def _unrescue(self, server: dict[str, Any]) -> None:
        self._ask(server, "unrescue")

    def _attach(self, server: dict[str, Any]) -> None:
        if self.volumes:
            wanted = {"volumeAttachment": {"volumeId": self.chance.choice(self.volumes)}}
            path = f"/servers/{server['id']}/os-volume_attachments"
            self._count("attach", self.client.post("compute", path, wanted))

    def _detach(self, server: dict[str, Any]) -> None:
        path = f"/servers/{server['id']}/os-volume_attachments"
        answer = self.client.get("compute", path)
        found = answer.json()["volumeAttachments"] if answer.status == 200 else []
        mine = [one["volumeId"] for one in found if one["volumeId"] in self.volumes]
        if mine:
            self._count("detach", self.client.delete("compute", f"{path}/{self.chance.choice(mine)}"))

    def _delete(self, server: dict[str, Any]) -> None:
        self.alive.discard(server["id"])  # should the kill come before the answer, nobody can tell
        answer = self.client.delete("compute", f"/servers/{server['id']}")
        self._count("delete", answer)
        (self.deleted if answer.status in (204, 404) else self.alive).add(server["id"])

    def _abort(self, server: dict[str, Any]) -> None:
        for number in self._under_way(server):
            self._count("abort", self.client.delete("compute", f"/servers/{server['id']}/migrations/{number}"))

    def _hurry(self, server: dict[str, Any]) -> None:
        for number in self._under_way(server):
            path = f"/servers/{server['id']}/migrations/{number}/action"
            self._count("hurry", self.client.post("compute", path, {"force_complete": None}))

    def _under_way(self, server: dict[str, Any]) -> list[int]:
        answer = self.client.get("compute", f"/servers/{server['id']}/migrations")
        return [one["id"] for one in answer.json()["migrations"]] if answer.status == 200 else []

    def _make_volume(self) -> str:
        answer = self.client.post("volume", "/volumes", {"volume": {"size": 1}}, version="3.60")
        assert answer.status == 202, answer.body
        made: str = answer.json()["volume"]["id"]
        return made


def _image(cloud: RealCloud, word: str, full: int = 0, more: int = 0) -> str:
    """As qcow2: a snapshot has its image's format, and a raw one would be a gibibyte of zeros to store."""
    raw = cloud.site.directory / f"{word}.raw"
    raw.write_bytes(cloud.site.micro_image(word, full).read_bytes() + os.urandom(more))
    small = raw.with_suffix(".qcow2")
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, small], check=True)
    return cloud.image(word, small.read_bytes(), "qcow2")


class Breaker(threading.Thread):
    """Breaks one thing after the other for a while, and mends it."""

    def __init__(
        self, cloud: RealCloud, users: GuestUsers, chance: random.Random, faults: list[str], pause: float
    ) -> None:
        super().__init__(daemon=True)
        self.cloud = cloud
        self.users = users
        self.chance = chance
        self.faults = faults
        self.pause = pause
        self.stopped = threading.Event()
        self.lost: str | None = None
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            for fault in self.faults:
                if self.stopped.wait(self.pause * self.chance.uniform(0.3, 1.7)):
                    return
                print(f"{time.strftime('%H:%M:%S')} {fault}", flush=True)
                getattr(self, f"_{fault}")(self.chance.choice(list(self.cloud.hosts)))
        except BaseException as trouble:
            self.trouble = trouble
            raise

    def _agent(self, host: str) -> None:
        self.cloud.kill_agent(host)
        self._wait(3.0)
        self.cloud.start_agent(host)

    def _libvirt(self, host: str) -> None:
        self.cloud.hosts[host].kill_libvirt()
        self._wait(4.0)
        self.cloud.hosts[host].start_libvirt()

    def _control(self, host: str) -> None:
        self.cloud.kill_control()
        self._wait(2.0)
        self.cloud.control.start()

    def _worker(self, host: str) -> None:
        worker = self.chance.choice(self.cloud.workers)
        worker.kill()
        self._wait(2.0)
        worker.start()

    def _nats(self, host: str) -> None:
        self.cloud.kill_nats()
        self._wait(3.0)
        self.cloud.start_nats()

    def _exports(self, host: str) -> None:
        self.cloud.kill_exports()

    def _power(self, host: str) -> None:
        self.cloud.cut_power(host)
        self._wait(4.0)
        if self.chance.random() < 0.5:
            time.sleep(7.0)
            self.lost = host  # the users evacuate it, in their own thread
            self._wait(6.0)
            self.lost = None
        self.cloud.power_on(host)

    def _wait(self, most: float) -> None:
        time.sleep(self.chance.uniform(0.0, most))
