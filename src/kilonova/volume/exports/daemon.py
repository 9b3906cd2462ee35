"""Starts and controls qemu-storage-daemon, which exports volumes and outlives the process that started it.

Processes of the control plane on the machine use it one at a time, by a lock file. The daemon keeps its exports only in
memory; the database says which exports it should have (see `manager`).
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

from kilonova.certificates import UnusableCertificate
from kilonova.volume.exports.credentials import Credentials, is_ident
from kilonova.volume.files import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qemu.qmp import QMPClient

    from kilonova.config import Config

log = logging.getLogger(__name__)

PROGRAM = "qemu-storage-daemon"
_RESPONSE_TIMEOUT_SECONDS = 30.0
_LOCK_TIMEOUT_SECONDS = 60.0
_EXIT_TIMEOUT_SECONDS = 2.0
_POLL_SECONDS = 0.01
# struct flock, for F_GETLK.
_FLOCK = struct.Struct("hhqqi4x")
_LOCK, _SOCKET, _PID, _ADDRESS, _TLS = "lock", "socket", "pid", "address", "tls"


class DaemonError(Exception):
    """The daemon cannot be started, does not respond, or refused a command."""


class Refusal(DaemonError):
    """The daemon refused a command."""


class Address(NamedTuple):
    host: str
    port: int


class Daemon:
    """The directory has the lock, the daemon's socket and process id, and its listening address.

    `tls` is the directory with the certificates. Without it the daemon does not use TLS.
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
        """Whether TLS is configured."""
        return self._tls is not None

    async def check(self) -> None:
        """Raises DaemonError if the configured certificates are unusable."""
        try:
            if self._tls is not None:
                await in_thread(Credentials.read, self._tls)
        except UnusableCertificate as error:
            raise DaemonError(str(error)) from None

    @property
    def was_used(self) -> bool:
        return (self.directory / _LOCK).exists()

    def address(self, *, unless_taken: bool = False) -> Address:
        """The address of the NBD server. A free port is chosen once, because guests reconnect to the same port.

        With `unless_taken` another port is chosen if a foreign process uses it.
        """
        if self._port:
            return Address(self._host, self._port)
        with self._address_lock():
            stored = self._stored_address()
            if stored is not None and unless_taken and not self._is_free(stored.port):
                stored = None
            return stored or self._choose_address()

    def is_alive(self) -> bool:
        """The daemon holds a lock on its pid file while it runs."""
        try:
            fd = os.open(self.directory / _PID, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            lock = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        finally:
            os.close(fd)
        return bool(_FLOCK.unpack(lock)[0] != fcntl.F_UNLCK)

    @asynccontextmanager
    async def session(
        self, *, start: bool, secure: bool | None = None, renew: bool = False
    ) -> AsyncIterator[Session | None]:
        """Exclusive access to the daemon; None if it does not run and `start` is false. Raises DaemonError.

        `secure`: with TLS or without, regardless of the configuration. With `start`, a daemon of the other mode is
        replaced. With `renew`, a daemon with outdated certificates is replaced too.
        """
        async with self._exclusive():
            client = await self._connect_if_alive()
            if client is not None and start and not await self._keep_or_stop(client, secure, renew):
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

    async def _keep_or_stop(self, client: QMPClient, secure: bool | None, renew: bool) -> bool:
        """Stop the daemon if it must be replaced, and return False. Guests wait and reconnect to the next daemon."""
        kept = False
        try:
            kept = not await self._must_be_replaced(Session(client), secure, renew)
            if not kept:
                log.info("restarting %s with other certificates", PROGRAM)
                await Session(client).quit()
        finally:
            if not kept:
                await _disconnect(client)
        async with asyncio.timeout(_RESPONSE_TIMEOUT_SECONDS):
            while not kept and self.is_alive():
                await asyncio.sleep(_POLL_SECONDS)
        return kept

    async def _must_be_replaced(self, session: Session, secure: bool | None, renew: bool) -> bool:
        """New certificates do not interrupt a running copy: the next daemon uses them."""
        if secure is None:
            return False
        found = await session.credentials()
        if bool(found) is not secure:
            return True
        if not (secure and renew) or self._tls is None:
            return False
        try:
            current = await in_thread(Credentials.read, self._tls)
        except UnusableCertificate as error:
            log.error("volumes are exported with the previous certificates: %s", error)
            return False
        return found != current.ident and not await session.execute("query-jobs")

    async def _connect_if_alive(self) -> QMPClient | None:
        """None if the daemon does not run, or exits meanwhile."""
        if not self.is_alive():
            return None
        try:
            return await self._connect()
        except DaemonError:
            # An exiting daemon holds its lock until its last thread ends.
            with suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_TIMEOUT_SECONDS):
                    while self.is_alive():
                        await asyncio.sleep(_POLL_SECONDS)
                    return None
            raise

    async def _connect(self) -> QMPClient:
        from qemu.qmp import QMPError

        # The log of the library has every command, and so the secret names of exports.
        logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL)
        try:
            async with asyncio.timeout(_RESPONSE_TIMEOUT_SECONDS):
                while (client := await self._negotiate()) is None:
                    await asyncio.sleep(_POLL_SECONDS)
        except (QMPError, OSError, TimeoutError) as error:
            raise DaemonError(f"{PROGRAM} does not respond: {str(error) or 'timeout'}") from error
        return client

    async def _negotiate(self) -> QMPClient | None:
        """Connect once. None if another message came instead of the greeting or the first response.

        The monitor has its own thread, so a job event or the response to a previous client may come first.
        """
        from qemu.qmp import ConnectError, QMPClient
        from qemu.qmp.qmp_client import GreetingError, NegotiationError

        client = QMPClient("exports")
        control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        control.setblocking(False)
        try:
            with _short_path(self.directory) as directory:
                while not _try_connect(control, f"{directory}/{_SOCKET}"):
                    await asyncio.sleep(_POLL_SECONDS)
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
        credentials = await in_thread(self._credentials) if secure else None
        objects = []
        if credentials is not None:
            objects = ["--object", orjson.dumps(credentials.options).decode()]
            server["tls-creds"] = credentials.ident
        # The length of socket paths is limited, so the daemon starts in the directory.
        (self.directory / _SOCKET).unlink(missing_ok=True)
        command = [
            PROGRAM,
            *("--chardev", f"socket,id=control,path={_SOCKET},server=on,wait=off", "--monitor", "chardev=control"),
            *objects,
            *("--nbd-server", orjson.dumps(server).decode(), "--pidfile", str(self.directory / _PID), "--daemonize"),
        ]
        # In a thread: the daemon must not inherit file descriptors that event loops open for their child processes.
        done = await in_thread(_run, command, self.directory)
        if done is None:
            raise DaemonError(f"{PROGRAM} did not start within {_RESPONSE_TIMEOUT_SECONDS:.0f} seconds")
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise DaemonError(f"{PROGRAM} does not start: {lines[-1] if lines else done.returncode}")
        self._raise_file_limit()
        log.info("volumes are exported at %s port %d%s", address.host, address.port, " with TLS" if secure else "")

    def _credentials(self) -> Credentials:
        """The configured certificates, else the previous ones, which clients of existing attachments require."""
        stored = self.directory / _TLS
        try:
            directory = self._tls or Path(stored.read_text())
            found = Credentials.read(directory)
        except FileNotFoundError:
            raise DaemonError("attachments were created with TLS, but volume.nbd_tls is not configured") from None
        except UnusableCertificate as error:
            raise DaemonError(str(error)) from None
        stored.write_text(str(directory))
        return found

    def _raise_file_limit(self) -> None:
        """The daemon has an open file for each volume and for each client."""
        with suppress(OSError, ValueError):
            pid = int((self.directory / _PID).read_text())
            _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            async with asyncio.timeout(_LOCK_TIMEOUT_SECONDS):
                while not _try_lock(fd):
                    await asyncio.sleep(_POLL_SECONDS)
            yield
        except TimeoutError:
            raise DaemonError(f"{PROGRAM} is in use by other processes") from None
        finally:
            os.close(fd)

    @contextmanager
    def _address_lock(self) -> Iterator[None]:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.directory / f"{_ADDRESS}.{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _stored_address(self) -> Address | None:
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

    def _choose_address(self) -> Address:
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
    """A QMP connection to the daemon."""

    def __init__(self, client: QMPClient) -> None:
        self._client = client

    async def execute(self, command: str, **arguments: Any) -> Any:
        """Execute a QMP command. Underscores stand for dashes. Raises Refusal or DaemonError."""
        from qemu.qmp import ExecuteError, QMPError

        dashed = {name.replace("_", "-"): value for name, value in arguments.items()}
        try:
            async with asyncio.timeout(_RESPONSE_TIMEOUT_SECONDS):
                return await self._client.execute(command, dashed)
        except ExecuteError as error:
            raise Refusal(str(error)) from error
        except (QMPError, OSError, TimeoutError) as error:
            raise DaemonError(f"{PROGRAM} does not respond: {str(error) or 'timeout'}") from error

    async def exports(self) -> dict[str, str]:
        """The node name of each export."""
        return {export["id"]: export["node-name"] for export in await self.execute("query-block-exports")}

    async def credentials(self) -> str:
        """The id of the daemon's TLS credentials; empty without TLS."""
        try:
            found = [item["name"] for item in await self.execute("qom-list", path="/objects")]
        except Refusal:  # no objects
            return ""
        return next(filter(is_ident, found), "")

    async def nodes(self) -> set[str]:
        return {node["node-name"] for node in await self.execute("query-named-block-nodes", flat=True)}

    async def remove_exports(self, idents: set[str]) -> None:
        """Disconnect the clients. On return no client can write any more."""
        for ident in idents:
            with suppress(Refusal):  # already removed
                await self.execute("block-export-del", id=ident, mode="hard")
        async with asyncio.timeout(_RESPONSE_TIMEOUT_SECONDS):
            while idents & (await self.exports()).keys():
                await asyncio.sleep(_POLL_SECONDS)

    async def quit(self) -> None:
        with suppress(DaemonError):
            await self.execute("quit")


def _run(command: list[str], directory: Path) -> subprocess.CompletedProcess[bytes] | None:
    """Run the command, which returns when the daemon is ready. None after a timeout."""
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        return subprocess.run(
            command,
            cwd=directory,
            stdin=null,
            stdout=null,
            stderr=pipe,
            timeout=_RESPONSE_TIMEOUT_SECONDS,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _try_connect(control: socket.socket, path: str) -> bool:
    """False while the previous client is still disconnecting: the backlog of the daemon is short."""
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
def _short_path(directory: Path) -> Iterator[str]:
    """A short path to the directory: paths of sockets are limited to about 100 bytes."""
    try:
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield str(directory)
        return
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
