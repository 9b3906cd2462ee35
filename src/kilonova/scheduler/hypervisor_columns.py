"""Type, version, CPU and address of each hypervisor. Equal hypervisors share one description."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from kilonova.scheduler.arrays import Integers, Mask, Numbers, extended

Words = npt.NDArray[np.uint64]


class HypervisorKind(msgspec.Struct, frozen=True, dict=True):
    """What equal hypervisors have in common; `cpu_info` is JSON, as in the database."""

    type: str = ""
    version: int = 0
    cpu_info: str = "{}"

    @cached_property
    def cpu(self) -> dict[str, Any]:
        found = orjson.loads(self.cpu_info or "{}")
        return found if isinstance(found, dict) else {}

    @property
    def architecture(self) -> str:
        return str(self.cpu.get("arch") or "")

    @property
    def release(self) -> str:
        """`6.2.0` for 6002000."""
        return f"{self.version // 1_000_000}.{self.version // 1000 % 1000}.{self.version % 1000}"


class Hypervisors:
    """A column of indexes into `kinds`, and the addresses as 128 bits in two columns."""

    def __init__(self, size: int) -> None:
        self.kinds: list[HypervisorKind] = []
        self.kind: Integers = np.zeros(size, np.int64)
        self.high: Words = np.zeros(size, np.uint64)
        self.low: Words = np.zeros(size, np.uint64)
        self.addresses: list[str] = []
        self._numbers: dict[HypervisorKind, int] = {}

    def where(self, test: Callable[[HypervisorKind], bool], everywhere: Mask) -> Mask:
        """Hosts whose kind passes the test; `everywhere` itself if all kinds pass."""
        passes = [test(kind) for kind in self.kinds]
        if all(passes):
            return everywhere
        return np.take(np.array(passes), self.kind)

    def kind_at(self, row: int) -> HypervisorKind:
        return self.kinds[int(self.kind[row])]

    def numbers(self, number: Callable[[HypervisorKind], float]) -> Numbers:
        """A number for each kind, to be indexed by `kind`."""
        return np.array([number(kind) for kind in self.kinds], np.float64)

    def within(self, network: bytes, bits: int) -> Mask:
        """Hosts whose address shares the first bits with the 16 bytes of `network`."""
        mask = ((1 << bits) - 1) << (128 - bits)
        wanted = int.from_bytes(network) & mask
        half = (1 << 64) - 1
        high, low = np.uint64(mask >> 64), np.uint64(mask & half)
        found: Mask = (self.high & high == np.uint64(wanted >> 64)) & (self.low & low == np.uint64(wanted & half))
        return found

    def put(self, row: int, kind: HypervisorKind, address: str) -> None:
        number = self._numbers.get(kind)
        if number is None:
            number = self._numbers[kind] = len(self.kinds)
            self.kinds.append(kind)
        self.kind[row] = number
        while len(self.addresses) <= row:
            self.addresses.append("")
        if self.addresses[row] != address:
            self.addresses[row] = address
            packed = pack_address(address) or bytes(16)
            self.high[row], self.low[row] = int.from_bytes(packed[:8]), int.from_bytes(packed[8:])

    def grow(self, by: int) -> None:
        self.kind = extended(self.kind, by)
        self.high = extended(self.high, by)
        self.low = extended(self.low, by)


def pack_address(address: str) -> bytes | None:
    """An IP address as 16 bytes, IPv4 mapped to IPv6; None if it is malformed."""
    try:
        if ":" in address:
            return socket.inet_pton(socket.AF_INET6, address)
        return bytes(10) + b"\xff\xff" + socket.inet_pton(socket.AF_INET, address)
    except OSError:
        return None
