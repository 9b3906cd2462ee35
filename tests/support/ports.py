"""Free ports for servers that tests start, and perhaps restart on the same port."""

from __future__ import annotations

import random
import socket

# Below the range of ephemeral ports, because the system could assign one before the server starts.
_PORTS = range(20000, 32000)
# Held until this process ends, because a test may restart its server on the same port.
_reservations: list[socket.socket] = []


def free_port(address: str = "127.0.0.1") -> int:
    """A port that no other test of any process gets."""
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
    """Reserve a port by an abstract socket, which only one process can bind and which ends with it."""
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0kilonova tests: port {port}")
    except OSError:
        reservation.close()
        return False
    _reservations.append(reservation)
    return True
