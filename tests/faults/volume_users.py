"""Users who boot from volumes, attach and detach, rebuild, move and delete at random; all chances come from a seed."""

from __future__ import annotations

import random
from typing import Any

from tests.faults.moving_users import Trouble, Users
from tests.support.process import Cloud

# How often each is asked for, by the status that the server showed last.
WISHES: dict[str, dict[str, int]] = {
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
    "MIGRATING": {"abort": 2, "hurry": 2},
}
BUSY = {"delete": 1, "attach": 1, "look": 12}


class VolumeUsers(Users):
    """Of the servers half boot from a volume. `volumes` are for data."""

    def __init__(self, cloud: Cloud, trouble: Trouble, chance: random.Random, servers: int, volumes: int) -> None:
        super().__init__(cloud, trouble, chance, servers, None)
        self.volumes: list[str] = []
        self.from_volume: set[str] = set()
        for number in range(volumes):
            answer = self.client.post(
                "volume", "/volumes", {"volume": {"size": 1, "name": f"data-{number}"}}, version="3.60"
            )
            assert answer.status == 202, answer.body
            self.volumes.append(answer.json()["volume"]["id"])

    def _wish(self, server: dict[str, Any]) -> None:
        wishes = WISHES.get(server["status"], BUSY)
        if server["OS-EXT-STS:task_state"] and server["status"] != "MIGRATING":
            wishes = BUSY
        what = self.chance.choices(list(wishes), list(wishes.values()))[0]
        if what != "look":
            getattr(self, f"_{what}")(server)

    def _create(self) -> None:
        if self.chance.random() < 0.4:
            return super()._create()
        device = {
            "boot_index": 0,
            "source_type": "image",
            "uuid": self.image,
            "destination_type": "volume",
            "volume_size": 1,
            "delete_on_termination": self.chance.random() < 0.7,
        }
        server = {"name": "v", "flavorRef": "1", "networks": "auto", "block_device_mapping_v2": [device]}
        answer = self.client.post("compute", "/servers", {"server": server})
        self.answers["create from volume", answer.status] += 1
        assert answer.status < 500, answer.body
        if answer.status == 202:
            identity = answer.json()["server"]["id"]
            self.alive.add(identity)
            self.from_volume.add(identity)
            self.acknowledged.append((identity, "create", answer.headers["x-openstack-request-id"]))
        return None

    def _attach(self, server: dict[str, Any]) -> None:
        attachment = {"volumeId": self.chance.choice(self.volumes), "delete_on_termination": False}
        path = f"/servers/{server['id']}/os-volume_attachments"
        answer = self.client.post("compute", path, {"volumeAttachment": attachment})
        self._count("attach", answer.status, answer.body)

    def _detach(self, server: dict[str, Any]) -> None:
        path = f"/servers/{server['id']}/os-volume_attachments"
        answer = self.client.get("compute", path)
        found = answer.json()["volumeAttachments"] if answer.status == 200 else []
        mine = [one["volumeId"] for one in found if one["volumeId"] in self.volumes]
        if mine:
            answer = self.client.delete("compute", f"{path}/{self.chance.choice(mine)}")
            self._count("detach", answer.status, answer.body)

    def _count(self, name: str, status: int, body: bytes) -> None:
        self.answers[name, status] += 1
        assert status in (200, 202, 400, 403, 404, 409), (name, status, body)
