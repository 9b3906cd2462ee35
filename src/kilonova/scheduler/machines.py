"""What hypervisors are: their type, version, processors and address. Hosts of a kind share one description."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from kilonova.scheduler.stock import Integers, longer

Mask = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]


class Machine(msgspec.Struct, frozen=True, dict=True):
    """A kind of hypervisor; `cpu_info` is JSON, as the database has it."""

    type: str = ""
    version: int = 0
    cpu_info: str = "{}"

    @cached_property
    def processors(self) -> dict[str, Any]:
        found = orjson.loads(self.cpu_info or "{}")
        return found if isinstance(found, dict) else {}

    @property
    def architecture(self) -> str:
        return str(self.processors.get("arch") or "")

    @property
    def release(self) -> str:
        """`6.2.0` for 6002000."""
        return f"{self.version // 1_000_000}.{self.version // 1000 % 1000}.{self.version % 1000}"


class Machines:
    """A column of numbers of kinds, and the addresses as 128 bits in two columns."""

    def __init__(self, size: int) -> None:
        self.kinds: list[Machine] = []
        self.kind: Integers = np.zeros(size, np.int64)
        self.high: Words = np.zeros(size, np.uint64)
        self.low: Words = np.zeros(size, np.uint64)
        self.addresses: list[str] = []
        self._numbers: dict[Machine, int] = {}

    def where(self, test: Callable[[Machine], bool], everywhere: Mask) -> Mask:
        """Hosts of the kinds that pass the test; `everywhere` itself if all do."""
        passes = [test(kind) for kind in self.kinds]
        if all(passes):
            return everywhere
        return np.take(np.array(passes), self.kind)

    def of(self, row: int) -> Machine:
        return self.kinds[int(self.kind[row])]

    def numbers(self, number: Callable[[Machine], float]) -> npt.NDArray[np.float64]:
        """A number of each kind, as a table to be looked up by `kind`."""
        return np.array([number(kind) for kind in self.kinds], np.float64)

    def within(self, network: bytes, bits: int) -> Mask:
        """Hosts whose address begins with so many bits of this one of 16 bytes."""
        mask = ((1 << bits) - 1) << (128 - bits)
        wanted = int.from_bytes(network) & mask
        half = (1 << 64) - 1
        high, low = np.uint64(mask >> 64), np.uint64(mask & half)
        found: Mask = (self.high & high == np.uint64(wanted >> 64)) & (self.low & low == np.uint64(wanted & half))
        return found

    def put(self, row: int, machine: Machine, address: str) -> None:
        number = self._numbers.get(machine)
        if number is None:
            number = self._numbers[machine] = len(self.kinds)
            self.kinds.append(machine)
        self.kind[row] = number
        while len(self.addresses) <= row:
            self.addresses.append("")
        if self.addresses[row] != address:
            self.addresses[row] = address
            packed = pack(address) or bytes(16)
            self.high[row], self.low[row] = int.from_bytes(packed[:8]), int.from_bytes(packed[8:])

    def grow(self, by: int) -> None:
        self.kind = longer(self.kind, by)
        self.high = longer(self.high, by)
        self.low = longer(self.low, by)


def pack(address: str) -> bytes | None:
    """An address as 16 bytes, an IPv4 one as IPv6 spells it; None if it is none."""
    try:
        if ":" in address:
            return socket.inet_pton(socket.AF_INET6, address)
        return bytes(10) + b"\xff\xff" + socket.inet_pton(socket.AF_INET, address)
    except OSError:
        return None
