"""Deletes connection tracking entries of ports whose rules have become stricter.

Uses netlink directly, because the conntrack program is not installed on most hosts.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import struct
from collections.abc import Iterator

log = logging.getLogger(__name__)

_NETFILTER = 12
_GET, _DELETE = (1 << 8) | 1, (1 << 8) | 2
_REQUEST, _ACK, _DUMP = 1, 4, 0x300
_ERROR, _DONE = 2, 3
_TUPLE_ORIGINAL, _TUPLE_REPLY, _ZONE = 1, 2, 18
_TUPLE_IP = 1
# Source and destination of IPv4, then of IPv6.
_ADDRESSES = (1, 2, 3, 4)
_NESTED = 0x3FFF


def delete_entries(wanted: dict[int, set[str]]) -> None:
    """Delete the entries with one of these endpoints, by zone. Failures are only logged: connections then continue."""
    packed = {
        zone: {ipaddress.ip_address(address).packed for address in addresses} for zone, addresses in wanted.items()
    }
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETFILTER) as kernel:
            kernel.settimeout(5.0)
            kernel.bind((0, 0))
            for family in (socket.AF_INET, socket.AF_INET6):
                for attributes in list(_list_entries(kernel, family)):
                    zone = struct.unpack("!H", attributes.get(_ZONE, b"\0\0")[:2])[0]
                    if zone in packed and _endpoints(attributes) & packed[zone]:
                        _delete(kernel, family, attributes)
    except OSError as error:
        log.warning("cannot delete connection tracking entries: %s", error)


def _list_entries(kernel: socket.socket, family: int) -> Iterator[dict[int, bytes]]:
    kernel.send(_message(_GET, _REQUEST | _DUMP, family, b""))
    while True:
        data = kernel.recv(1 << 18)
        while len(data) >= 16:
            length, kind = struct.unpack_from("=IH", data)
            if kind in (_DONE, _ERROR):
                return
            yield dict(_attributes(data[20:length]))
            data = data[(length + 3) & ~3 :]


def _delete(kernel: socket.socket, family: int, attributes: dict[int, bytes]) -> None:
    key = _attribute(_TUPLE_ORIGINAL | 0x8000, attributes[_TUPLE_ORIGINAL])
    if _ZONE in attributes:
        key += _attribute(_ZONE, attributes[_ZONE])
    kernel.send(_message(_DELETE, _REQUEST | _ACK, family, key))
    kernel.recv(1 << 16)  # an error means that the entry has expired


def _endpoints(attributes: dict[int, bytes]) -> set[bytes]:
    found = set()
    for name in (_TUPLE_ORIGINAL, _TUPLE_REPLY):
        pair = dict(_attributes(attributes.get(name, b"")))
        addresses = dict(_attributes(pair.get(_TUPLE_IP, b"")))
        found |= {addresses[kind] for kind in _ADDRESSES if kind in addresses}
    return found


def _message(kind: int, flags: int, family: int, attributes: bytes) -> bytes:
    body = struct.pack("=BBH", family, 0, 0) + attributes
    return struct.pack("=IHHII", 16 + len(body), kind, flags, int.from_bytes(os.urandom(3)), 0) + body


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield kind & _NESTED, data[4:length]
        data = data[(length + 3) & ~3 :]
