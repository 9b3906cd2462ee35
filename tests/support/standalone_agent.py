"""The agent of a real host, called over a socket: for tests without a control plane.

    agent = StandaloneAgent(site.host("one"), instances)    # starts a process on the host
    agent.call(Spawn(guest=…, data=…))                      # as the control plane does; raises HostRefused
    agent.kill(); agent.start()

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
from kilonova.hosts.messages import Command, GuestState, Transfer
from kilonova.hosts.messages.verbs import Change, Describe, GetConsoleLog, ListGuests, Read
from kilonova.hosts.transport import read_reply
from kilonova.ids import new_id
from tests.support.virt_hosts import Host, Process, wait_until

_LENGTH = struct.Struct(">I")
_REPOSITORY = Path(__file__).parents[2]


class StandaloneAgent:
    """Starts the agent's process, and sends commands to it."""

    def __init__(self, host: Host, instances: Path, **settings: Any) -> None:
        self.host = host
        self.name = host.name
        self.instances = instances
        self.settings = {"libvirt": {}, **settings}
        self.process: Process | None = None
        self._step_numbers = itertools.count()
        self._socket = host.directory / "agent.sock"
        self.start()

    def start(self) -> None:
        self._socket.unlink(missing_ok=True)
        data = self.host.directory / "agent"
        data.mkdir(exist_ok=True)
        self.instances.mkdir(exist_ok=True, parents=True)
        config = self.host.directory / "agent.json"
        config.write_bytes(msgspec.json.encode(self._config(data)))
        command = [sys.executable, "-m", "tests.support.standalone_agent", str(config), str(self._socket)]
        # This repository, also if another one is installed.
        path = os.pathsep.join((str(_REPOSITORY), str(_REPOSITORY / "src")))
        self.process = self.host.start_process(command, env={"PYTHONPATH": path}, log="standalone-agent")
        wait_until(self._is_responding, f"the agent of {self.name} responds")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def call(self, verb: Change | Read, operation: str = "", seconds: float = 300.0) -> Any:
        """Send a command, by default with a new operation id, and return the result."""
        command = Command(
            host=self.name, operation=operation or new_id(), step=f"step {next(self._step_numbers)}", epoch=1, verb=verb
        )
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(str(self._socket))
            data = messages.encode(command)
            connection.sendall(_LENGTH.pack(len(data)) + data)
            length = _LENGTH.unpack(_receive(connection, _LENGTH.size))[0]
            return read_reply(self.name, command, _receive(connection, length))

    def start_call(self, verb: Change | Read, seconds: float = 300.0) -> PendingCall:
        """Send a command without waiting for its result."""
        return PendingCall(lambda: self.call(verb, seconds=seconds))

    def addresses(self) -> dict[str, str]:
        """The addresses at which other hosts reach this host."""
        found: dict[str, str] = self.call(Describe()).addresses
        return found

    def guests(self) -> list[GuestState]:
        found: list[GuestState] = self.call(ListGuests())
        return found

    def power(self, guest_id: str) -> str | None:
        """The power state of the guest, ignoring guests in slots."""
        return next((guest.power for guest in self.guests() if guest.id == guest_id and not guest.slot), None)

    def slots(self, guest_id: str) -> list[str]:
        return [guest.slot for guest in self.guests() if guest.id == guest_id and guest.slot]

    def console(self, guest_id: str) -> str:
        return bytes(self.call(GetConsoleLog(guest_id=guest_id))).decode(errors="replace").replace("\r", "")

    def ticks(self, guest_id: str) -> list[int]:
        return [int(number) for number in re.findall(r"TICK (\d{5})", self.console(guest_id))]

    def wait_for_output(self, guest_id: str, pattern: str, seconds: float = 300.0) -> None:
        """Wait until the guest's console matches the pattern."""
        description = f"the console of {guest_id} on {self.name} matches {pattern}"
        wait_until(lambda: re.search(pattern, self.console(guest_id)), description, seconds)

    def domains(self) -> dict[str, bool]:
        return self.host.domains()

    def _is_responding(self) -> bool:
        assert self.process is not None
        if not self.process.alive():
            raise AssertionError(self.process.output_file.read_text()[-3000:])
        try:
            return bool(self.addresses().get("disks"))
        except (OSError, EOFError, DriverError):
            return False
        except Exception as error:
            if "libvirt" in str(error):
                return False
            raise

    def _config(self, data: Path) -> dict[str, Any]:
        libvirt = {"virt_type": "qemu", "cache_mode": "writeback"}
        agent = {
            "host": self.name,
            "address": self.host.address,
            "instances_path": str(self.instances),
        }
        return {
            "data": str(data),
            "agent": {**agent, **self.settings.get("agent", {})},
            "libvirt": {**libvirt, **self.settings.get("libvirt", {})},
            "bridges": {"enabled": False},
            # Without a NATS server there are no other hosts, and no disk server.
            "messaging": {"url": "nats://unused"},
        }


class PendingCall:
    """A command that runs in a thread."""

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
        assert self.is_done, f"the command has not ended within {seconds:g} s"
        if self._error is not None:
            raise self._error
        return self._result


def _receive(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        chunk = connection.recv(length - len(data))
        if not chunk:
            raise EOFError("the agent closed the connection")
        data += chunk
    return data


# In the process on the host


class FileImageService:
    """An image service that reads the file at `Transfer.url`."""

    async def write(self, transfer: Transfer, data: bytes | AsyncIterator[bytes]) -> None:
        raise DriverError("this image service is read-only")

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
    from kilonova.hosts.agent import Agent
    from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver
    from kilonova.hosts.journal import Journal

    driver = LibvirtDriver(config.agent.host, config, FileImageService())
    agent = Agent(config.agent.host, driver, Journal(config.data_dir / "agents.db"))

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            reply = await agent.handle(await reader.readexactly(length))
            writer.write(_LENGTH.pack(len(reply)) + reply)
            await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(handle, path):
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
