"""The namespace of each network: where its gateway, DHCP and metadata are, apart from the host's own network."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.networks.commands import run

DIRECTORY = Path("/run/netns")
_CLONE_NEWNET = 0x40000000

T = TypeVar("T")


def present() -> set[str]:
    """The names of namespaces. Of one that is gone with its host's power the file may be left."""
    try:
        names = os.listdir(DIRECTORY)
    except FileNotFoundError:
        return set()
    return {name for name in names if _is_alive(name)}


def _is_alive(name: str) -> bool:
    try:
        return (DIRECTORY / name).stat().st_dev == os.stat("/proc/self/ns/net").st_dev
    except OSError:
        return False


async def ensure(name: str) -> bool:
    """A namespace that routes, and believes nobody's advertisements. Whether it had to be made."""
    made = not _is_alive(name)
    if made:
        (DIRECTORY / name).unlink(missing_ok=True)
        await run("ip", "netns", "add", name)
    await inside(name, _settle)
    await run("ip", "-n", name, "link", "set", "lo", "up")
    return made


# Nobody is told of shorter ways: guests would keep to them when routes have changed.
_SETTINGS = {
    "ipv4/ip_forward": "1",
    "ipv4/conf/all/send_redirects": "0",
    "ipv4/conf/default/send_redirects": "0",
    "ipv6/conf/all/forwarding": "1",
    "ipv6/conf/all/accept_ra": "0",
}


def _settle() -> None:
    for key, value in _SETTINGS.items():
        write_setting(key, value)


def write_setting(key: str, value: str) -> None:
    """Of the namespace that the thread is in. What the kernel does not have need not be set."""
    try:
        Path(f"/proc/sys/net/{key}").write_text(value)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise DriverError(f"net/{key} cannot be set: {error.strerror}", passing=True) from None


async def remove(name: str) -> None:
    await run("ip", "netns", "del", name, check=False)
    if not _is_alive(name):
        (DIRECTORY / name).unlink(missing_ok=True)


def entering(name: str) -> list[str]:
    """Before a command that is to run there. Unlike `ip netns exec` it keeps the mounts as they are: copies of them
    would hold on to other namespaces for as long as the command runs.
    """
    return ["nsenter", f"--net={DIRECTORY / name}", "--"]


async def inside(name: str, work: Callable[[], T]) -> T:
    """Do something in the namespace. A thread of its own, for a namespace is a thread's, and it never comes back."""
    return await asyncio.to_thread(_enter_and, name, work)


def _enter_and(name: str, work: Callable[[], T]) -> T:
    outcome: list[T] = []
    trouble: list[BaseException] = []

    def there() -> None:
        try:
            _enter(name)
            outcome.append(work())
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=there, name=f"in {name}")
    thread.start()
    thread.join()
    if trouble:
        raise trouble[0]
    return outcome[0]


def _enter(name: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        handle = os.open(DIRECTORY / name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DriverError(f"namespace {name}: {error.strerror}", passing=True) from None
    try:
        if libc.setns(handle, _CLONE_NEWNET):
            raise DriverError(f"namespace {name}: {os.strerror(ctypes.get_errno())}", passing=True)
    finally:
        os.close(handle)


def listen(address: str, port: int) -> socket.socket:
    """A socket of the namespace that the thread is in; it stays there wherever it is used."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
        bound.listen(64)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound
