"""The process that exports volumes: qemu-storage-daemon, in a session of its own, so that it outlives whoever began it.

Every process of the control plane on the machine may speak to it, one at a time: a lock in its directory says whose
turn it is. What it exports is nowhere but in its memory; the database says what that should be (see `keeper`).
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import resource
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from kilonova.certificates import Unusable
from kilonova.volume.exports.credentials import Credentials, is_ident
from kilonova.volume.files import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qemu.qmp import QMPClient

    from kilonova.config import Config

log = logging.getLogger(__name__)

PROGRAM = "qemu-storage-daemon"
# For the daemon to answer, and for others to have their turn with it.
_SECONDS = 30.0
_TURN_SECONDS = 60.0
_LAST_SECONDS = 2.0
_LOOK_SECONDS = 0.01
# struct flock, to ask who holds a lock.
_FLOCK = struct.Struct("hhqqi4x")
_LOCK, _SOCKET, _PID, _ADDRESS, _TLS = "lock", "socket", "pid", "address", "tls"


class DaemonError(Exception):
    """It cannot be started, or does not do what it is told."""


class Refusal(DaemonError):
    """It said no, for its own reasons."""


class Address(NamedTuple):
    host: str
    port: int


class Daemon:
    """In a directory: the lock, the daemon's socket and process id, and the address where it listens.

    `tls` is the directory with its certificates; without one it asks nobody who he is.
    """

    def __init__(self, directory: Path, host: str, port: int, tls: Path | None = None) -> None:
        self.directory = directory
        self._host = host
        self._port = port
        self._tls = tls

    @classmethod
    def of(cls, config: Config) -> Daemon:
        volume = config.volume
        tls = Path(volume.nbd_tls).absolute() if volume.nbd_tls else None
        return cls(config.data_dir / "exports", volume.nbd_address, volume.nbd_port, tls)

    @property
    def is_secure(self) -> bool:
        """Whether it shall speak TLS."""
        return self._tls is not None

    async def check(self) -> None:
        """Raises DaemonError where the configured certificates are of no use."""
        try:
            if self._tls is not None:
                await in_thread(Credentials.read, self._tls)
        except Unusable as error:
            raise DaemonError(str(error)) from None

    @property
    def was_used(self) -> bool:
        return (self.directory / _LOCK).exists()

    def address(self, *, unless_taken: bool = False) -> Address:
        """Where volumes are exported. A free port is chosen once: guests come back to the one they know.

        With `unless_taken` another one is chosen if a stranger has it by now.
        """
        if self._port:
            return Address(self._host, self._port)
        with self._alone():
            known = self._remembered()
            if known is not None and unless_taken and not self._is_free(known.port):
                known = None
            return known or self._choose()

    def is_alive(self) -> bool:
        """It holds a lock on the file with its process id as long as it lives."""
        try:
            fd = os.open(self.directory / _PID, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            answer = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        finally:
            os.close(fd)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    @asynccontextmanager
    async def session(
        self, *, start: bool, secure: bool | None = None, renew: bool = False
    ) -> AsyncIterator[Session | None]:
        """One's turn with the daemon; None if it does not run and shall not be started. Raises DaemonError.

        `secure`: with TLS or without, whatever is configured; one that runs otherwise is replaced if it shall be
        started. With `renew` so is one whose certificates are not those of now.
        """
        async with self._turn():
            client = await self._reach()
            if client is not None and start and not await self._is_kept(client, secure, renew):
                client = None
            if client is None:
                if not start:
                    yield None
                    return
                await self._start(self.is_secure if secure is None else secure)
                client = await self._connect()
            try:
                yield Session(client)
            finally:
                await _disconnect(client)

    async def _is_kept(self, client: QMPClient, secure: bool | None, renew: bool) -> bool:
        """If not, it has ended. Clients wait, and come back to the next one."""
        kept = False
        try:
            kept = not await self._is_other(Session(client), secure, renew)
            if not kept:
                log.info("%s is replaced by one with other certificates", PROGRAM)
                await Session(client).quit()
        finally:
            if not kept:
                await _disconnect(client)
        async with asyncio.timeout(_SECONDS):
            while not kept and self.is_alive():
                await asyncio.sleep(_LOOK_SECONDS)
        return kept

    async def _is_other(self, session: Session, secure: bool | None, renew: bool) -> bool:
        """A copy is not broken off for new certificates: those come with the next daemon."""
        if secure is None:
            return False
        found = await session.credentials()
        if bool(found) is not secure:
            return True
        if not (secure and renew) or self._tls is None:
            return False
        try:
            known = await in_thread(Credentials.read, self._tls)
        except Unusable as error:
            log.error("volumes are exported with the certificates of before: %s", error)
            return False
        return found != known.ident and not await session.do("query-jobs")

    async def _reach(self) -> QMPClient | None:
        """None: it does not run, or was dying as we came."""
        if not self.is_alive():
            return None
        try:
            return await self._connect()
        except DaemonError:
            # Its threads go one by one, and its lock with the last.
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    while self.is_alive():
                        await asyncio.sleep(_LOOK_SECONDS)
                    return None
            raise

    async def _connect(self) -> QMPClient:
        from qemu.qmp import QMPError

        # Its log names every command, and so the names of exports.
        logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL)
        try:
            async with asyncio.timeout(_SECONDS):
                while (client := await self._greeted()) is None:
                    await asyncio.sleep(_LOOK_SECONDS)
        except (QMPError, OSError, TimeoutError) as error:
            raise DaemonError(f"{PROGRAM} does not answer: {str(error) or 'in time'}") from error
        return client

    async def _greeted(self) -> QMPClient | None:
        """None: it spoke of something else first.

        Its monitor has a thread of its own, so that the news of a job, or the answer to a caller who has gone, may
        come before its greeting or between that and its first answer.
        """
        from qemu.qmp import ConnectError, QMPClient
        from qemu.qmp.qmp_client import GreetingError, NegotiationError

        client = QMPClient("exports")
        control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        control.setblocking(False)
        try:
            with _short(self.directory) as directory:
                while not _reached(control, f"{directory}/{_SOCKET}"):
                    await asyncio.sleep(_LOOK_SECONDS)
            await client.connect(control)
        except BaseException as error:
            control.close()
            if isinstance(error, ConnectError) and isinstance(error.exc, (GreetingError, NegotiationError)):
                return None
            raise
        return client

    async def _start(self, secure: bool) -> None:
        if shutil.which(PROGRAM) is None:
            raise DaemonError(f"{PROGRAM} is not installed")
        address = self.address()
        server = {"addr": {"type": "inet", "host": address.host, "port": str(address.port)}, "max-connections": 0}
        known = await in_thread(self._credentials) if secure else None
        objects = []
        if known is not None:
            objects = ["--object", orjson.dumps(known.options).decode()]
            server["tls-creds"] = known.ident
        # Paths of sockets are short by nature: it starts in the directory.
        (self.directory / _SOCKET).unlink(missing_ok=True)
        command = [
            PROGRAM,
            *("--chardev", f"socket,id=control,path={_SOCKET},server=on,wait=off", "--monitor", "chardev=control"),
            *objects,
            *("--nbd-server", orjson.dumps(server).decode(), "--pidfile", str(self.directory / _PID), "--daemonize"),
        ]
        # In a thread: a daemon must not inherit what loops have open for their own children.
        done = await in_thread(_run, command, self.directory)
        if done is None:
            raise DaemonError(f"{PROGRAM} does not start in time")
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip().splitlines()
            raise DaemonError(f"{PROGRAM} does not start: {words[-1] if words else done.returncode}")
        self._lift_limit()
        log.info("volumes are exported at %s port %d%s", address.host, address.port, " with TLS" if secure else "")

    def _credentials(self) -> Credentials:
        """Those of before where none are configured any more: some clients still want them."""
        remembered = self.directory / _TLS
        try:
            directory = self._tls or Path(remembered.read_text())
            found = Credentials.read(directory)
        except FileNotFoundError:
            raise DaemonError("attachments were made with TLS, but volume.nbd_tls is not configured") from None
        except Unusable as error:
            raise DaemonError(str(error)) from None
        remembered.write_text(str(directory))
        return found

    def _lift_limit(self) -> None:
        """It has a file open for each volume, and one for each client."""
        with suppress(OSError, ValueError):
            pid = int((self.directory / _PID).read_text())
            _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            async with asyncio.timeout(_TURN_SECONDS):
                while not _taken(fd):
                    await asyncio.sleep(_LOOK_SECONDS)
            yield
        except TimeoutError:
            raise DaemonError(f"others keep {PROGRAM} busy") from None
        finally:
            os.close(fd)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """For a moment: the address is chosen by one process."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.directory / f"{_ADDRESS}.{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _remembered(self) -> Address | None:
        with suppress(FileNotFoundError, ValueError, KeyError):
            port = int(orjson.loads((self.directory / _ADDRESS).read_bytes())["port"])
            return Address(self._host, port)
        return None

    def _is_free(self, port: int) -> bool:
        try:
            return self._bind(port) == port
        except OSError:
            return False

    def _bind(self, port: int) -> int:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((self._host, port))
            return int(probe.getsockname()[1])

    def _choose(self) -> Address:
        try:
            port = self._bind(0)
        except OSError as error:
            raise DaemonError(f"volumes cannot be exported at {self._host}: {error.strerror}") from None
        path = self.directory / _ADDRESS
        new = path.with_suffix(".new")
        new.write_bytes(orjson.dumps({"port": port}))
        new.rename(path)
        return Address(self._host, port)


class Session:
    """A conversation with the daemon."""

    def __init__(self, client: QMPClient) -> None:
        self._client = client

    async def do(self, command: str, **arguments: Any) -> Any:
        """Underscores stand for dashes. Raises Refusal or DaemonError."""
        from qemu.qmp import ExecuteError, QMPError

        asked = {name.replace("_", "-"): value for name, value in arguments.items()}
        try:
            async with asyncio.timeout(_SECONDS):
                return await self._client.execute(command, asked)
        except ExecuteError as error:
            raise Refusal(str(error)) from error
        except (QMPError, OSError, TimeoutError) as error:
            raise DaemonError(f"{PROGRAM} does not answer: {str(error) or 'in time'}") from error

    async def exports(self) -> dict[str, str]:
        """The node of each export."""
        return {export["id"]: export["node-name"] for export in await self.do("query-block-exports")}

    async def credentials(self) -> str:
        """By what the daemon proves who it is; nothing without TLS."""
        try:
            found = [one["name"] for one in await self.do("qom-list", path="/objects")]
        except Refusal:  # there are none
            return ""
        return next(filter(is_ident, found), "")

    async def nodes(self) -> set[str]:
        return {node["node-name"] for node in await self.do("query-named-block-nodes", flat=True)}

    async def remove_exports(self, idents: set[str]) -> None:
        """Clients are cut off; none of them writes any more when this returns."""
        for ident in idents:
            with suppress(Refusal):  # gone, or about to be
                await self.do("block-export-del", id=ident, mode="hard")
        async with asyncio.timeout(_SECONDS):
            while idents & (await self.exports()).keys():
                await asyncio.sleep(_LOOK_SECONDS)

    async def quit(self) -> None:
        with suppress(DaemonError):
            await self.do("quit")


def _run(command: list[str], directory: Path) -> subprocess.CompletedProcess[bytes] | None:
    """It ends when the daemon is at work. None: not in time."""
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        return subprocess.run(
            command,
            cwd=directory,
            stdin=null,
            stdout=null,
            stderr=pipe,
            timeout=_SECONDS,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def _taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _reached(control: socket.socket, path: str) -> bool:
    """False while the one before us has not quite gone: the daemon listens to few at a time."""
    try:
        control.connect(path)
    except BlockingIOError:
        return False
    return True


async def _disconnect(client: QMPClient) -> None:
    from qemu.qmp import QMPError

    with suppress(QMPError, OSError, EOFError):
        await client.disconnect()


@contextmanager
def _short(directory: Path) -> Iterator[str]:
    """Another path to the directory, for sockets in it: theirs must not be longer than a hundred bytes or so."""
    try:
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield str(directory)
        return
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
