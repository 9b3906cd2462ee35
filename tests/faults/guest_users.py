"""Random users of real guests, and random faults of agents, hosts and services. A seed makes both reproducible."""

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

from tests.support.cloud_process import Response
from tests.support.virt_cloud import RealCloud

VERSION = "2.96"
REFRESH_SECONDS = 0.5
# Weights of the actions, by the last seen status of the server.
ACTIONS: dict[str, dict[str, int]] = {
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
    # Detach only here: the kernel of a micro guest does not release devices.
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
    "MIGRATING": {"abort": 1, "force_complete": 1, "nothing": 8},
}
BUSY_ACTIONS = {"nothing": 60, "delete": 1}
REFUSAL_STATUSES = (400, 403, 404, 409)
# Additional data of one image, so that faults can occur while it is copied.
PADDING_BYTES = 32 << 20


class GuestUsers:
    """Records acknowledged requests. The result of an interrupted request is unknown."""

    def __init__(self, cloud: RealCloud, rng: random.Random, servers: int, volumes: int, networks: list[str]) -> None:
        self.cloud = cloud
        self.rng = rng
        self.servers = servers
        self.networks = networks
        self.images = [_image(cloud, "red"), _image(cloud, "filled", 6, padding_bytes=PADDING_BYTES)]
        self.flavors = [cloud.flavor("micro"), cloud.flavor("larger", ram=80, disk=1)]
        self.client = cloud.control.client("kilonova", VERSION)
        self.alive: set[str] = set()
        self.deleted: set[str] = set()
        self.answers: Counter[tuple[str, int]] = Counter()
        self.last_seen: dict[str, dict[str, Any]] = {}
        self.next_refresh_at = 0.0
        self.volumes = [self._create_volume() for _ in range(volumes)]

    def boot_all(self) -> None:
        while len(self.alive) < self.servers:
            self._create()

    def act(self) -> None:
        """Send one request. Reconnect if a kill has cut the connection."""
        try:
            if time.monotonic() > self.next_refresh_at:
                servers = self.client.get("compute", "/servers/detail").json()["servers"]
                self.last_seen = {server["id"]: server for server in servers}
                self.next_refresh_at = time.monotonic() + REFRESH_SECONDS
            if len(self.alive) < self.servers:
                self._create()
            known = sorted(self.alive & self.last_seen.keys())
            if known:
                self._act_on(self.last_seen[self.rng.choice(known)])
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
        """Evacuate most known servers of a failed host."""
        for server in list(self.last_seen.values()):
            if server["OS-EXT-SRV-ATTR:host"] == host and self.rng.random() < 0.7:
                try:
                    self._post_action(server, "evacuate", {})
                except (OSError, http.client.HTTPException, json.JSONDecodeError):
                    return

    def _act_on(self, server: dict[str, Any]) -> None:
        busy = server["OS-EXT-STS:task_state"] and server["status"] != "MIGRATING"
        weights = BUSY_ACTIONS if busy else ACTIONS.get(server["status"], BUSY_ACTIONS)
        action = self.rng.choices(list(weights), list(weights.values()))[0]
        getattr(self, f"_{action}")(server)

    def _nothing(self, server: dict[str, Any]) -> None:
        pass

    def _create(self) -> None:
        image = self.rng.choice(self.images)
        server: dict[str, Any] = {"name": "x", "flavorRef": self.rng.choice(self.flavors), "networks": "none"}
        if self.networks and self.rng.random() < 0.5:
            server["networks"] = [{"uuid": self.rng.choice(self.networks)}]
        if self.rng.random() < 0.3:
            server["config_drive"] = True
        if self.rng.random() < 0.3:
            device = {"boot_index": 0, "source_type": "image", "uuid": image, "destination_type": "volume"}
            server["block_device_mapping_v2"] = [{**device, "volume_size": 1, "delete_on_termination": True}]
        else:
            server["imageRef"] = image
        answer = self.client.post("compute", "/servers", {"server": server})
        self._count("create", answer)
        if answer.status == 202:
            self.alive.add(answer.json()["server"]["id"])

    # Actions on one server

    def _post_action(self, server: dict[str, Any], action: str, body: Any = None) -> None:
        self._count(action, self.client.post("compute", f"/servers/{server['id']}/action", {action: body}))

    def _count(self, name: str, answer: Response) -> None:
        self.answers[name, answer.status] += 1
        assert answer.status in (200, 202, 204, *REFUSAL_STATUSES), (name, answer.status, answer.body)

    def _live(self, server: dict[str, Any]) -> None:
        self._post_action(server, "os-migrateLive", {"host": None, "block_migration": "auto"})

    def _migrate(self, server: dict[str, Any]) -> None:
        self._post_action(server, "migrate")

    def _resize(self, server: dict[str, Any]) -> None:
        name = server["flavor"]["original_name"]
        self._post_action(server, "resize", {"flavorRef": self.flavors[1 if name == "micro" else 0]})

    def _confirm(self, server: dict[str, Any]) -> None:
        self._post_action(server, "confirmResize")

    def _revert(self, server: dict[str, Any]) -> None:
        self._post_action(server, "revertResize")

    def _shelve(self, server: dict[str, Any]) -> None:
        self._post_action(server, "shelve")

    def _offload(self, server: dict[str, Any]) -> None:
        self._post_action(server, "shelveOffload")

    def _unshelve(self, server: dict[str, Any]) -> None:
        self._post_action(server, "unshelve")

    def _rebuild(self, server: dict[str, Any]) -> None:
        self._post_action(server, "rebuild", {"imageRef": self.rng.choice(self.images)})

    def _snapshot(self, server: dict[str, Any]) -> None:
        self._post_action(server, "createImage", {"name": "snapshot"})

    def _start(self, server: dict[str, Any]) -> None:
        self._post_action(server, "os-start")

    def _stop(self, server: dict[str, Any]) -> None:
        self._post_action(server, "os-stop")

    def _reboot(self, server: dict[str, Any]) -> None:
        self._post_action(server, "reboot", {"type": self.rng.choice(("HARD", "SOFT"))})

    def _pause(self, server: dict[str, Any]) -> None:
        self._post_action(server, "pause")

    def _unpause(self, server: dict[str, Any]) -> None:
        self._post_action(server, "unpause")

    def _suspend(self, server: dict[str, Any]) -> None:
        self._post_action(server, "suspend")

    def _resume(self, server: dict[str, Any]) -> None:
        self._post_action(server, "resume")

    def _rescue(self, server: dict[str, Any]) -> None:
        self._post_action(server, "rescue", {"rescue_image_ref": self.images[0]})

    def _unrescue(self, server: dict[str, Any]) -> None:
        self._post_action(server, "unrescue")

    def _attach(self, server: dict[str, Any]) -> None:
        if self.volumes:
            body = {"volumeAttachment": {"volumeId": self.rng.choice(self.volumes)}}
            path = f"/servers/{server['id']}/os-volume_attachments"
            self._count("attach", self.client.post("compute", path, body))

    def _detach(self, server: dict[str, Any]) -> None:
        path = f"/servers/{server['id']}/os-volume_attachments"
        answer = self.client.get("compute", path)
        found = answer.json()["volumeAttachments"] if answer.status == 200 else []
        attached = [attachment["volumeId"] for attachment in found if attachment["volumeId"] in self.volumes]
        if attached:
            self._count("detach", self.client.delete("compute", f"{path}/{self.rng.choice(attached)}"))

    def _delete(self, server: dict[str, Any]) -> None:
        self.alive.discard(server["id"])  # the result is unknown if a kill precedes the response
        answer = self.client.delete("compute", f"/servers/{server['id']}")
        self._count("delete", answer)
        (self.deleted if answer.status in (204, 404) else self.alive).add(server["id"])

    def _abort(self, server: dict[str, Any]) -> None:
        for number in self._migration_ids(server):
            self._count("abort", self.client.delete("compute", f"/servers/{server['id']}/migrations/{number}"))

    def _force_complete(self, server: dict[str, Any]) -> None:
        for number in self._migration_ids(server):
            path = f"/servers/{server['id']}/migrations/{number}/action"
            self._count("force_complete", self.client.post("compute", path, {"force_complete": None}))

    def _migration_ids(self, server: dict[str, Any]) -> list[int]:
        answer = self.client.get("compute", f"/servers/{server['id']}/migrations")
        return [migration["id"] for migration in answer.json()["migrations"]] if answer.status == 200 else []

    def _create_volume(self) -> str:
        answer = self.client.post("volume", "/volumes", {"volume": {"size": 1}}, version="3.60")
        assert answer.status == 202, answer.body
        volume_id: str = answer.json()["volume"]["id"]
        return volume_id


def _image(cloud: RealCloud, word: str, fill_mb: int = 0, padding_bytes: int = 0) -> str:
    """Create an image as qcow2: its snapshots get the same format, and a raw snapshot would store a gibibyte."""
    raw = cloud.site.directory / f"{word}.raw"
    raw.write_bytes(cloud.site.micro_image(word, fill_mb).read_bytes() + os.urandom(padding_bytes))
    qcow2 = raw.with_suffix(".qcow2")
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, qcow2], check=True)
    return cloud.image(word, qcow2.read_bytes(), "qcow2")


class FaultInjector(threading.Thread):
    """Injects one fault after the other, and repairs each."""

    def __init__(
        self, cloud: RealCloud, users: GuestUsers, rng: random.Random, faults: list[str], pause: float
    ) -> None:
        super().__init__(daemon=True)
        self.cloud = cloud
        self.users = users
        self.rng = rng
        self.faults = faults
        self.pause = pause
        self.stopped = threading.Event()
        self.failed_host: str | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for fault in self.faults:
                if self.stopped.wait(self.pause * self.rng.uniform(0.3, 1.7)):
                    return
                print(f"{time.strftime('%H:%M:%S')} {fault}", flush=True)
                getattr(self, f"_{fault}")(self.rng.choice(list(self.cloud.hosts)))
        except BaseException as error:
            self.error = error
            raise

    def _agent(self, host: str) -> None:
        self.cloud.kill_agent(host)
        self._wait_at_most(3.0)
        self.cloud.start_agent(host)

    def _libvirt(self, host: str) -> None:
        self.cloud.hosts[host].kill_libvirt()
        self._wait_at_most(4.0)
        self.cloud.hosts[host].start_libvirt()

    def _control(self, host: str) -> None:
        self.cloud.kill_control()
        self._wait_at_most(2.0)
        self.cloud.control.start()

    def _worker(self, host: str) -> None:
        worker = self.rng.choice(self.cloud.workers)
        worker.kill()
        self._wait_at_most(2.0)
        worker.start()

    def _nats(self, host: str) -> None:
        self.cloud.kill_nats()
        self._wait_at_most(3.0)
        self.cloud.start_nats()

    def _exports(self, host: str) -> None:
        self.cloud.kill_exports()

    def _power(self, host: str) -> None:
        self.cloud.cut_power(host)
        self._wait_at_most(4.0)
        if self.rng.random() < 0.5:
            time.sleep(7.0)
            self.failed_host = host  # the users evacuate it in their own thread
            self._wait_at_most(6.0)
            self.failed_host = None
        self.cloud.power_on(host)

    def _wait_at_most(self, seconds: float) -> None:
        time.sleep(self.rng.uniform(0.0, seconds))
