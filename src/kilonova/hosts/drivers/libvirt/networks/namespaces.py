"""Network namespaces: each network has one for its gateway, DHCP and metadata service."""

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


def list_namespaces() -> set[str]:
    """The names of existing namespaces. After a power failure files without a namespace may remain."""
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
    """Make a namespace that routes and ignores router advertisements. Returns whether it is new."""
    is_new = not _is_alive(name)
    if is_new:
        (DIRECTORY / name).unlink(missing_ok=True)
        await run("ip", "netns", "add", name)
    await run_inside(name, _apply_settings)
    await run("ip", "-n", name, "link", "set", "lo", "up")
    return is_new


# No redirects: guests would keep using them after routes have changed.
_SETTINGS = {
    "ipv4/ip_forward": "1",
    "ipv4/conf/all/send_redirects": "0",
    "ipv4/conf/default/send_redirects": "0",
    "ipv6/conf/all/forwarding": "1",
    "ipv6/conf/all/accept_ra": "0",
}


def _apply_settings() -> None:
    for key, value in _SETTINGS.items():
        write_setting(key, value)


def write_setting(key: str, value: str) -> None:
    """Write a sysctl of the thread's namespace. Settings that the kernel does not have are skipped."""
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


def nsenter_command(name: str) -> list[str]:
    """The prefix of a command in the namespace. `ip netns exec` copies mounts, which keeps other namespaces alive."""
    return ["nsenter", f"--net={DIRECTORY / name}", "--"]


async def run_inside(name: str, work: Callable[[], T]) -> T:
    """Call `work` in the namespace, in a new thread, because a thread cannot leave the namespace safely."""
    return await asyncio.to_thread(_run_in_thread, name, work)


def _run_in_thread(name: str, work: Callable[[], T]) -> T:
    outcome: list[T] = []
    errors: list[BaseException] = []

    def enter_and_work() -> None:
        try:
            _enter(name)
            outcome.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=enter_and_work, name=f"in {name}")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
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
    """A listening socket of the thread's namespace. It stays in the namespace when other threads use it."""
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
