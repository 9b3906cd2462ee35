"""Reads the server of an operation, and describes its guest for a host."""

from __future__ import annotations

import base64
from typing import Any

import orjson

from kilonova.compute.servers import model
from kilonova.compute.zones import model as zones
from kilonova.hosts import messages
from kilonova.hosts.messages import Transfer
from kilonova.image.client import file_path
from kilonova.operations import Cancelled, Failed, LostLease, Operation
from kilonova.services import Services
from kilonova.store import Reader, Row, Transaction


class Harmless(Operation):
    """An operation whose failure changes neither host nor state of the server; only the server's fault is set."""

    async def failed(self, tx: Transaction, error: Failed) -> None:
        if not isinstance(error, Cancelled):
            await model.note_fault(tx, str(self.server_id), str(error), error.fault)


async def server_of(op: Operation, reader: Reader | None = None) -> Row:
    """The operation's server as it is now."""
    row = await (reader or op.db).fetch_one("SELECT * FROM servers WHERE id = $1", op.server_id)
    if row is None:
        raise Failed(f"Instance {op.server_id} could not be found.")
    return row


async def fence(op: Operation, tx: Transaction) -> None:
    """Refuse the transaction of a worker that has lost its lease. Raises LostLease.

    Call it last, so that locks are taken in the same order as in the API's transactions.
    """
    sql = "SELECT 1 FROM operations WHERE id = $1 AND epoch = $2 FOR UPDATE"
    if await tx.fetch_value(sql, op.id, op.epoch) is None:
        raise LostLease(op.id)


async def remove_params(op: Operation, tx: Transaction, *names: str) -> None:
    """Delete parameters, such as a password, from the operation's row."""
    kept = {name: value for name, value in op.params.items() if name not in names}
    await tx.execute("UPDATE operations SET params = $2 WHERE id = $1", op.id, orjson.dumps(kept).decode())


async def image_transfer(services: Services, image_id: str) -> Transfer:
    """URL and service token with which a host reads or writes the image's data."""
    return Transfer(url=file_path(image_id), token=await services.identity.token())


async def zone_of(op: Operation, host: str) -> str:
    """The availability zone of the host, for the guest's metadata."""
    return (await zones.zone_of_hosts(op.db, [host], op.services.config.scheduler.default_zone))[host]


def guest_of(
    server: Row,
    nics: list[dict[str, Any]],
    disks: list[messages.Disk] | None = None,
    local_disks: list[messages.LocalDisk] | None = None,
    zone: str = "",
) -> messages.Guest:
    flavor = orjson.loads(server["flavor"])
    properties = orjson.loads(server["image_properties"])
    return messages.Guest(
        id=server["id"],
        name=server["name"],
        hostname=server["hostname"],
        project_id=server["project_id"],
        user_id=server["user_id"],
        flavor=messages.Flavor(
            name=flavor["name"],
            vcpus=flavor["vcpus"],
            ram_mb=flavor["ram"],
            disk_gb=flavor["disk"],
            ephemeral_gb=flavor["ephemeral"],
            swap_mb=flavor["swap"],
            extra_specs=flavor["extra_specs"],
        ),
        image=messages.Image(
            id=server["image_id"],
            disk_format=properties.get("disk_format", "raw"),
            container_format=properties.get("container_format", "bare"),
            properties=properties,
        )
        if server["image_id"]
        else None,
        volume_properties={} if server["image_id"] else properties,
        nics=[nic_of(nic) for nic in nics],
        disks=disks or [],
        local_disks=local_disks,
        key=messages.Key(name=server["key_name"], public_key=server["public_key"]) if server["key_name"] else None,
        config_drive=server["config_drive"],
        metadata=orjson.loads(server["metadata"]),
        user_data=base64.b64decode(server["user_data"]) if server["user_data"] else None,
        availability_zone=zone,
        launch_index=server["launch_index"],
        reservation_id=server["reservation_id"],
        sealed_password=server["sealed_password"] or "",
        created_at=server["created_at"],
    )


def nic_of(nic: dict[str, Any]) -> messages.Nic:
    """The interface for a host, from its record in the server's row."""
    return messages.Nic(
        port_id=nic["port_id"],
        mac=nic["mac"],
        network_id=nic["network_id"],
        addresses=nic["addresses"],
        tag=nic["tag"] or "",
    )
