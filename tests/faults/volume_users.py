"""Random users of volumes: they boot, attach, detach, rebuild, move and delete. A seed makes them reproducible."""

from __future__ import annotations

import random
from typing import Any

from tests.faults.move_users import HostFaults, Users
from tests.support.cloud_process import CloudProcess

# Weights of the actions, by the last seen status of the server.
ACTIONS: dict[str, dict[str, int]] = {
    "ACTIVE": {
        "attach": 8,
        "detach": 6,
        "rebuild": 4,
        "migrateLive": 5,
        "migrate": 3,
        "resize": 2,
        "shelve": 3,
        "stop": 1,
        "delete": 1,
    },
    "SHUTOFF": {"attach": 3, "detach": 3, "start": 3, "migrate": 2, "rebuild": 1, "delete": 1},
    "VERIFY_RESIZE": {"confirm": 3, "revert": 4, "attach": 2, "detach": 2, "delete": 1},
    "SHELVED": {"unshelve": 2, "offload": 2, "delete": 1},
    "SHELVED_OFFLOADED": {"unshelve": 8, "attach": 1, "detach": 1, "delete": 1},
    "ERROR": {"rebuild": 2, "delete": 2},
    "MIGRATING": {"abort": 2, "force_complete": 2},
}
BUSY_ACTIONS = {"delete": 1, "attach": 1, "nothing": 12}


class VolumeUsers(Users):
    """About half of the servers boot from a volume. `volumes` are data volumes."""

    def __init__(self, cloud: CloudProcess, faults: HostFaults, rng: random.Random, servers: int, volumes: int) -> None:
        super().__init__(cloud, faults, rng, servers, None)
        self.volumes: list[str] = []
        self.from_volume: set[str] = set()
        for number in range(volumes):
            answer = self.client.post(
                "volume", "/volumes", {"volume": {"size": 1, "name": f"data-{number}"}}, version="3.60"
            )
            assert answer.status == 202, answer.body
            self.volumes.append(answer.json()["volume"]["id"])

    def _act_on(self, server: dict[str, Any]) -> None:
        weights = ACTIONS.get(server["status"], BUSY_ACTIONS)
        if server["OS-EXT-STS:task_state"] and server["status"] != "MIGRATING":
            weights = BUSY_ACTIONS
        action = self.rng.choices(list(weights), list(weights.values()))[0]
        if action != "nothing":
            getattr(self, f"_{action}")(server)

    def _create(self) -> None:
        if self.rng.random() < 0.4:
            return super()._create()
        device = {
            "boot_index": 0,
            "source_type": "image",
            "uuid": self.image,
            "destination_type": "volume",
            "volume_size": 1,
            "delete_on_termination": self.rng.random() < 0.7,
        }
        server = {"name": "v", "flavorRef": "1", "networks": "auto", "block_device_mapping_v2": [device]}
        answer = self.client.post("compute", "/servers", {"server": server})
        self.answers["create from volume", answer.status] += 1
        assert answer.status < 500, answer.body
        if answer.status == 202:
            server_id = answer.json()["server"]["id"]
            self.alive.add(server_id)
            self.from_volume.add(server_id)
            self.acknowledged.append((server_id, "create", answer.headers["x-openstack-request-id"]))
        return None

    def _attach(self, server: dict[str, Any]) -> None:
        attachment = {"volumeId": self.rng.choice(self.volumes), "delete_on_termination": False}
        path = f"/servers/{server['id']}/os-volume_attachments"
        answer = self.client.post("compute", path, {"volumeAttachment": attachment})
        self._count("attach", answer.status, answer.body)

    def _detach(self, server: dict[str, Any]) -> None:
        path = f"/servers/{server['id']}/os-volume_attachments"
        answer = self.client.get("compute", path)
        found = answer.json()["volumeAttachments"] if answer.status == 200 else []
        attached = [attachment["volumeId"] for attachment in found if attachment["volumeId"] in self.volumes]
        if attached:
            answer = self.client.delete("compute", f"{path}/{self.rng.choice(attached)}")
            self._count("detach", answer.status, answer.body)

    def _count(self, name: str, status: int, body: bytes) -> None:
        self.answers[name, status] += 1
        assert status in (200, 202, 400, 403, 404, 409), (name, status, body)
