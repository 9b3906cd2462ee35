"""An agent of a real host that is spoken to by a socket: a test without a control plane.

    one = Agent(site.host("one"), instances)      # starts it on the host
    one.ask(Spawn(guest=…, data=…))               # as a control plane would, and raises HostFailed
    one.kill(); one.start()

Images are files: `Transfer.url` is a path.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import socket
import struct
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from kilonova.config import Config
from kilonova.hosts import messages
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.messages import Change, Command, GuestState, ListGuests, LookConsole, Read, Transfer
from kilonova.hosts.transport import read_reply
from kilonova.ids import new_id
from tests.support.virt_hosts import Host, Process, until

_LENGTH = struct.Struct(">I")
_REPOSITORY = Path(__file__).parents[2]


class Agent:
    """From outside."""

    def __init__(self, host: Host, instances: Path, **settings: Any) -> None:
        self.host = host
        self.name = host.name
        self.instances = instances
        self.settings = {"libvirt": {}, **settings}
        self.process: Process | None = None
        self._numbers = itertools.count()
        self._socket = host.directory / "agent.sock"
        self.start()

    def start(self) -> None:
        self._socket.unlink(missing_ok=True)
        data = self.host.directory / "agent"
        data.mkdir(exist_ok=True)
        self.instances.mkdir(exist_ok=True, parents=True)
        config = self.host.directory / "agent.json"
        config.write_bytes(msgspec.json.encode(self._config(data)))
        command = [sys.executable, "-m", "tests.support.lone_agent", str(config), str(self._socket)]
        self.process = self.host.run(command, env={"PYTHONPATH": str(_REPOSITORY)}, log="lone")
        until(self._answers, f"the agent of {self.name} answers")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def ask(self, verb: Change | Read, operation: str = "", seconds: float = 300.0) -> Any:
        """Every question is a step of its own, unless it names its operation."""
        named = Command(
            host=self.name, operation=operation or new_id(), step=f"step {next(self._numbers)}", epoch=1, verb=verb
        )
        with socket.socket(socket.AF_UNIX) as way:
            way.settimeout(seconds)
            way.connect(str(self._socket))
            data = messages.encode(named)
            way.sendall(_LENGTH.pack(len(data)) + data)
            length = _LENGTH.unpack(_received(way, _LENGTH.size))[0]
            return read_reply(self.name, named, _received(way, length))

    def begin(self, verb: Change | Read, seconds: float = 300.0) -> Asked:
        return Asked(lambda: self.ask(verb, seconds=seconds))

    def reach(self) -> dict[str, str]:
        found: dict[str, str] = self.ask(messages.Describe()).addresses
        return found

    def guests(self) -> list[GuestState]:
        found: list[GuestState] = self.ask(ListGuests())
        return found

    def power(self, guest_id: str) -> str | None:
        """Of the guest itself, not of what lies in slots."""
        return next((guest.power for guest in self.guests() if guest.id == guest_id and not guest.slot), None)

    def slots(self, guest_id: str) -> list[str]:
        return [guest.slot for guest in self.guests() if guest.id == guest_id and guest.slot]

    def console(self, guest_id: str) -> str:
        return bytes(self.ask(LookConsole(guest_id=guest_id))).decode(errors="replace").replace("\r", "")

    def ticks(self, guest_id: str) -> list[int]:
        return [int(number) for number in re.findall(r"TICK (\d{5})", self.console(guest_id))]

    def says(self, guest_id: str, pattern: str, seconds: float = 300.0) -> None:
        until(lambda: re.search(pattern, self.console(guest_id)), f"{guest_id} says {pattern} on {self.name}", seconds)

    def domains(self) -> dict[str, bool]:
        return self.host.domains()

    def _answers(self) -> bool:
        assert self.process is not None
        if not self.process.alive():
            raise AssertionError(self.process.out.read_text()[-3000:])
        try:
            return bool(self.reach().get("disks"))
        except (OSError, EOFError, DriverError):
            return False
        except Exception as error:
            if "libvirt" in str(error):
                return False
            raise

    def _config(self, data: Path) -> dict[str, Any]:
        libvirt = {"virt_type": "qemu", "vnc_listen": self.host.address, "cache_mode": "writeback"}
        agent = {
            "host": self.name,
            "address": self.host.address,
            "disk_secret": "between the hosts of one test",
            "instances": str(self.instances),
        }
        return {
            "data": str(data),
            "agent": {**agent, **self.settings.get("agent", {})},
            "libvirt": {**libvirt, **self.settings.get("libvirt", {})},
            "bridges": {"enabled": False},
        }


class Asked:
    """A question that takes its time."""

    def __init__(self, call: Any) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=[call], daemon=True)
        self._thread.start()

    def _run(self, call: Any) -> None:
        try:
            self._result = call()
        except BaseException as error:
            self._error = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, seconds: float = 300.0) -> Any:
        self._thread.join(seconds)
        assert self.is_done, "it takes too long"
        if self._error is not None:
            raise self._error
        return self._result


def _received(way: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = way.recv(length - len(data))
        if not piece:
            raise EOFError("the agent is gone")
        data += piece
    return data


# On the host


class FileImages:
    async def write(self, transfer: Transfer, data: bytes | AsyncIterator[bytes]) -> None:
        raise DriverError("images are only read here")

    async def read(self, transfer: Transfer) -> AsyncIterator[bytes]:
        yield Path(transfer.url).read_bytes()

    async def show(self, transfer: Transfer) -> dict[str, Any]:
        return {
            "status": "active",
            "disk_format": "raw",
            "container_format": "bare",
            "size": Path(transfer.url).stat().st_size,
        }


async def serve(config: Config, path: str) -> None:
    from kilonova.hosts.agent import Agent as RealAgent
    from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver
    from kilonova.hosts.journal import Journal

    driver = LibvirtDriver(config.agent.host, config, FileImages())
    agent = RealAgent(config.agent.host, driver, Journal(config.data_dir / "agents.db"))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            reply = await agent.handle(await reader.readexactly(length))
            writer.write(_LENGTH.pack(len(reply)) + reply)
            await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, path):
        await driver.run()


def main() -> None:
    import faulthandler
    import logging
    import signal

    import uvloop

    faulthandler.register(signal.SIGUSR1)

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    os.umask(0o077)
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config)
    uvloop.run(serve(config, sys.argv[2]))


if __name__ == "__main__":
    main()
