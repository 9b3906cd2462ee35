"""Reads the server of an operation, and describes its guest for a host."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Literal

import msgspec

from kilonova.compute.servers import model
from kilonova.compute.servers.server import Interface, Server
from kilonova.compute.zones import model as zones
from kilonova.hosts import messages
from kilonova.hosts.messages import Transfer
from kilonova.image.tickets import ImageTicket, image_path
from kilonova.network.client import Subnet
from kilonova.operations import Cancelled, Failed, LostLease, Operation
from kilonova.operations.definition import P_co
from kilonova.store import Reader, Transaction
from kilonova.store.records import encode_document

# A transfer that has begun may take longer. A host that begins later gets a new ticket with the repeated command.
IMAGE_TICKET_SECONDS = 600.0


class Harmless(Operation[P_co]):
    """An operation whose failure changes neither host nor state of the server; only the server's fault is set."""

    async def failed(self, tx: Transaction, error: Failed) -> None:
        if not isinstance(error, Cancelled):
            await model.note_fault(tx, str(self.server_id), str(error), error.fault)


async def server_of(op: Operation, reader: Reader | None = None) -> Server:
    """The operation's server as it is now."""
    row = await (reader or op.db).fetch_one("SELECT * FROM servers WHERE id = $1", op.server_id)
    if row is None:
        raise Failed(f"Instance {op.server_id} could not be found.")
    return Server.decode(row)


async def host_of(op: Operation) -> str:
    """The host of the operation's server."""
    return (await server_of(op)).host_name


async def fence(op: Operation, tx: Transaction) -> None:
    """Refuse the transaction of a worker that has lost its lease. Raises LostLease.

    Call it last, so that locks are taken in the same order as in the API's transactions.
    """
    sql = "SELECT 1 FROM operations WHERE id = $1 AND epoch = $2 FOR UPDATE"
    if await tx.fetch_value(sql, op.id, op.epoch) is None:
        raise LostLease(op.id)


async def remove_params(op: Operation, tx: Transaction, *names: str) -> None:
    """Delete parameters, such as a password, from the operation's row."""
    text = await tx.fetch_value("SELECT params FROM operations WHERE id = $1", op.id)
    kept = {name: value for name, value in _decode_params(text).items() if name not in names}
    await tx.execute("UPDATE operations SET params = $2 WHERE id = $1", op.id, encode_document(kept))


_decode_params = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def image_transfer(op: Operation, image_id: str, host: str, method: Literal["GET", "PUT"] = "GET") -> Transfer:
    """URL and ticket with which the host reads or writes the image's data during the operation."""
    ticket = ImageTicket(image_id, method, host, op.id)
    return Transfer(
        url=f"{image_path(image_id)}/file", ticket=op.services.image_tickets.issue(ticket, IMAGE_TICKET_SECONDS)
    )


async def zone_of(op: Operation, host: str) -> str:
    """The availability zone of the host, for the guest's metadata."""
    return (await zones.zone_of_hosts(op.db, [host], op.services.config.scheduler.default_zone))[host]


def guest_of(
    server: Server,
    nics: Iterable[Interface],
    disks: list[messages.Disk] | None = None,
    local_disks: list[messages.LocalDisk] | None = None,
    zone: str = "",
) -> messages.Guest:
    flavor, properties = server.flavor, server.image_properties
    return messages.Guest(
        id=server.id,
        name=server.name,
        hostname=server.hostname,
        project_id=server.project_id,
        user_id=server.user_id,
        flavor=messages.Flavor(
            name=flavor.name,
            vcpus=flavor.vcpus,
            ram_mb=flavor.ram,
            disk_gb=flavor.disk,
            ephemeral_gb=flavor.ephemeral,
            swap_mb=flavor.swap,
            extra_specs=flavor.extra_specs,
        ),
        image=messages.Image(
            id=server.image_id,
            disk_format=properties.get("disk_format", "raw"),
            container_format=properties.get("container_format", "bare"),
            properties=properties,
            hash=server.image_hash or "",
        )
        if server.image_id
        else None,
        volume_properties={} if server.image_id else properties,
        nics=[nic_of(nic) for nic in nics],
        disks=disks or [],
        local_disks=local_disks,
        key=messages.Key(name=server.key_name, public_key=server.public_key or "") if server.key_name else None,
        config_drive=server.config_drive,
        metadata=server.metadata,
        user_data=base64.b64decode(server.user_data) if server.user_data else None,
        files=[
            messages.File(path=file.path, content=base64.b64decode(file.contents)) for file in server.personality or ()
        ],
        availability_zone=zone,
        launch_index=server.launch_index,
        reservation_id=server.reservation_id,
        sealed_password=server.sealed_password or "",
        created_at=server.created_at,
    )


def nic_of(interface: Interface) -> messages.Nic:
    """The interface for a host."""
    return messages.Nic(
        port_id=interface.port_id,
        mac=interface.mac,
        network_id=interface.network_id,
        addresses=interface.addresses,
        tag=interface.tag or "",
        vif_type=interface.vif_type,
        vif_details=interface.vif_details,
        vnic_type=interface.vnic_type,
        mtu=interface.mtu,
        subnets=[_wired_subnet(subnet) for subnet in interface.subnets],
    )


def _wired_subnet(subnet: Subnet) -> messages.WiredSubnet:
    return messages.WiredSubnet(
        id=subnet.id,
        cidr=subnet.cidr,
        gateway=subnet.gateway_ip or "",
        dhcp=subnet.enable_dhcp,
        dns=subnet.dns_nameservers,
        routes=[(route.destination, route.nexthop) for route in subnet.host_routes],
        mode=subnet.ipv6_address_mode or "",
    )
