"""Ports for servers that tests start a moment later, and again on the same port."""

from __future__ import annotations

import random
import socket

# Below those that the system gives to connections, one of which could take it until the server starts.
_PORTS = range(20000, 32000)
# What was given out, for as long as this process lives: the server may be down just when others look for a port.
_given: list[socket.socket] = []


def free_port(address: str = "127.0.0.1") -> int:
    """One that no other test gets, in whichever process it runs."""
    for port in random.SystemRandom().sample(_PORTS, 100):
        if _is_free(address, port) and _reserve(port):
            return port
    raise AssertionError(f"there is no free port at {address}")


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    """By a name that one process at a time can have, and that goes with it."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0kilonova tests: port {port}")
    except OSError:
        name.close()
        return False
    _given.append(name)
    return True
