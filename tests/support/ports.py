"""Ports for servers that tests start a moment later, and again on the same port."""

from __future__ import annotations

import random
import socket

# Below those that the system gives to connections, one of which could take it until the server starts.
_PORTS = range(20000, 32000)


def free_port(address: str = "127.0.0.1") -> int:
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise AssertionError(f"there is no free port at {address}")
