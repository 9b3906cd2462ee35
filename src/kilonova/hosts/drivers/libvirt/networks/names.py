"""How what is made on the host is called. Interfaces have 15 characters at most, so that ids are cut."""

from __future__ import annotations

import hashlib
import re

_LONGEST = 15
METADATA = "169.254.169.254"
# The ends of a network's links, in its own namespace.
GATE, UPLINK = "gate", "uplink"


class Names:
    """All begin with the prefix. Those of interfaces go on with a letter for what they are."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.table = "kilonova" if prefix == "kn" else f"kilonova_{prefix}"
        self._made = re.compile(rf"{re.escape(prefix)}[bvgu][0-9a-f]{{{_LONGEST - len(prefix) - 1}}}")
        self._space = re.compile(rf"{re.escape(prefix)}-([0-9a-f-]{{36}})")

    def bridge(self, network_id: str) -> str:
        return self._interface("b", network_id)

    def vxlan(self, network_id: str) -> str:
        return self._interface("v", network_id)

    def gate(self, network_id: str) -> str:
        """The bridge's end of the link to the network's namespace."""
        return self._interface("g", network_id)

    def uplink(self, network_id: str) -> str:
        """The host's end of the link by which the network's namespace leads outside."""
        return self._interface("u", network_id)

    def tap(self, port_id: str) -> str:
        return self._interface("t", port_id)

    def space(self, network_id: str) -> str:
        return f"{self.prefix}-{network_id}"

    def all_of(self, letter: str) -> str:
        """As nftables matches them."""
        return f"{self.prefix}{letter}*"

    def is_made(self, interface: str) -> bool:
        """Whether the interface is one of ours. Taps are libvirt's."""
        return self._made.fullmatch(interface) is not None

    def network_of(self, space: str) -> str | None:
        found = self._space.fullmatch(space)
        return found.group(1) if found else None

    def _interface(self, letter: str, ident: str) -> str:
        return f"{self.prefix}{letter}{ident.replace('-', '')}"[:_LONGEST]


def gateway_mac(network_id: str) -> str:
    """The same on every host, so that a guest that moves keeps its gateway."""
    return "02:" + hashlib.sha256(f"gateway {network_id}".encode()).digest()[:5].hex(":")


def joint(network_id: str) -> str:
    """The interface towards another network, in a namespace."""
    return f"j{network_id.replace('-', '')}"[:_LONGEST]
