"""Names of interfaces, namespaces and tables on the host. Ids are truncated: interface names have 15 characters."""

from __future__ import annotations

import hashlib
import re

_MAX_LENGTH = 15
METADATA_ADDRESS = "169.254.169.254"
# Interfaces in a network's namespace.
GATEWAY, UPLINK = "gate", "uplink"


class Names:
    """All names start with the prefix. In interface names a letter for the kind of interface follows."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.table = "kilonova" if prefix == "kn" else f"kilonova_{prefix}"
        self._own = re.compile(rf"{re.escape(prefix)}[bvgu][0-9a-f]{{{_MAX_LENGTH - len(prefix) - 1}}}")
        self._tap = re.compile(rf"{re.escape(prefix)}t[0-9a-f]{{{_MAX_LENGTH - len(prefix) - 1}}}")
        self._namespace = re.compile(rf"{re.escape(prefix)}-([0-9a-f-]{{36}})")

    def bridge(self, network_id: str) -> str:
        return self._interface("b", network_id)

    def vxlan(self, network_id: str) -> str:
        return self._interface("v", network_id)

    def gateway_veth(self, network_id: str) -> str:
        """The bridge's end of the veth pair to the gateway interface in the network's namespace."""
        return self._interface("g", network_id)

    def uplink(self, network_id: str) -> str:
        """The host's end of the veth pair for the external access of the network's namespace."""
        return self._interface("u", network_id)

    def tap(self, port_id: str) -> str:
        return self._interface("t", port_id)

    def is_tap(self, name: str) -> bool:
        return self._tap.fullmatch(name) is not None

    def namespace(self, network_id: str) -> str:
        return f"{self.prefix}-{network_id}"

    def wildcard(self, letter: str) -> str:
        """The nftables pattern for all interfaces of a kind."""
        return f"{self.prefix}{letter}*"

    def is_own(self, interface: str) -> bool:
        """Whether Kilonova made the interface. Taps are made by libvirt."""
        return self._own.fullmatch(interface) is not None

    def network_of(self, namespace: str) -> str | None:
        found = self._namespace.fullmatch(namespace)
        return found.group(1) if found else None

    def _interface(self, letter: str, ident: str) -> str:
        return f"{self.prefix}{letter}{ident.replace('-', '')}"[:_MAX_LENGTH]


def gateway_mac(network_id: str) -> str:
    """The same MAC on every host, so that the gateway does not change for a guest that moves."""
    return "02:" + hashlib.sha256(f"gateway {network_id}".encode()).digest()[:5].hex(":")


def router_link(network_id: str) -> str:
    """The interface in a namespace that leads to another network of the same router."""
    return f"j{network_id.replace('-', '')}"[:_MAX_LENGTH]
