"""The connection to libvirt: calls in threads, a lost connection opened again, events brought to the loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kilonova.hosts.drivers.base import DriverError

if TYPE_CHECKING:
    import libvirt

log = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds: between probes of a silent connection, and how many may stay unanswered.
_PROBE_EVERY = 5
_PROBES = 3
_LOOK_EVERY = 1.0


class Event(NamedTuple):
    """What happened to a domain. `kind`:

    lifecycle          `event` and `detail` are libvirt's VIR_DOMAIN_EVENT_…
    reboot             the guest restarted by itself
    device removed     `device` is the alias of what the guest has let go
    device kept        the guest did not let `device` go
    reconnected        events may have been missed; no domain is named
    """

    kind: str
    guest_id: str = ""
    event: int = -1
    detail: int = -1
    device: str = ""


class Connection:
    """Every blocking call has a thread of its own, so that a long one is in nobody's way."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._open: libvirt.virConnect | None = None
        self._opening = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._callbacks: list[Callable[[Event], None]] = []
        self._closed = False

    async def run(self, call: Callable[..., T], *args: Any, stop: Callable[[], object] | None = None) -> T:
        """`call(*args)` in a thread; its libvirtError becomes a DriverError, with the former as its cause.

        A cancellation comes out only when the call has ended. `stop` is called meanwhile, in a thread too, to make it
        end early.
        """
        self._loop = asyncio.get_running_loop()
        return await finished(in_thread(self._translated, call, *args), stop)

    async def ask(self, call: Callable[..., T], *args: Any, stop: Callable[[], object] | None = None) -> T:
        """As run, with the open connection as the first argument: `call(virConnect, *args)`."""
        return await self.run(self._connected, call, *args, stop=stop)

    def on_event(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """`callback` is called in the loop from now on, until what is returned here is called."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    async def keep(self) -> None:
        """Opens the connection whenever it is lost, for events to come, until cancelled."""
        silent = False
        while True:
            try:
                await self.run(self._opened)
                silent = False
            except DriverError as error:
                if not silent:
                    log.warning("libvirt at %s does not answer: %s", self.uri, error.message)
                silent = True
            await asyncio.sleep(_LOOK_EVERY)

    async def close(self) -> None:
        self._closed = True
        self._callbacks.clear()
        connection, self._open = self._open, None
        if connection is not None:
            await finished(in_thread(_close, connection))

    def opened(self) -> libvirt.virConnect:
        """For code that is in a thread already. Raises libvirtError or DriverError."""
        return self._opened()

    def _connected(self, call: Callable[..., T], *args: Any) -> T:
        return call(self._opened(), *args)

    def _translated(self, call: Callable[..., T], *args: Any) -> T:
        import libvirt

        try:
            return call(*args)
        except libvirt.libvirtError as error:
            raise self._translation(error) from error

    def _translation(self, error: libvirt.libvirtError) -> DriverError:
        import libvirt

        code, origin = error.get_error_code(), error.get_error_domain()
        message = str(error.get_error_message() or error).strip()
        lost = code in (libvirt.VIR_ERR_INVALID_CONN, libvirt.VIR_ERR_NO_CONNECT, libvirt.VIR_ERR_AUTH_UNAVAILABLE) or (
            origin in (libvirt.VIR_FROM_RPC, libvirt.VIR_FROM_REMOTE) and not self._alive()
        )
        if lost:
            return DriverError(f"libvirt at {self.uri} does not answer: {message}", passing=True)
        if code == libvirt.VIR_ERR_NO_DOMAIN:
            return DriverError(message, kind="missing guest")
        # Somebody else works on the domain just now.
        return DriverError(message, passing=code == libvirt.VIR_ERR_OPERATION_TIMEOUT)

    def _alive(self) -> bool:
        import libvirt

        connection = self._open
        try:
            return connection is not None and bool(connection.isAlive())
        except libvirt.libvirtError:
            return False

    def _opened(self) -> libvirt.virConnect:
        with self._opening:
            if self._closed:
                raise DriverError("the connection to libvirt is closed", passing=True)
            if self._open is not None:
                if self._alive():
                    return self._open
                log.warning("the connection to libvirt at %s was lost", self.uri)
                _close(self._open)
                self._open = None
            self._open = self._new()
        self._tell(Event("reconnected"))
        return self._open

    def _new(self) -> libvirt.virConnect:
        import libvirt

        start_events()
        connection = libvirt.open(self.uri)
        try:
            connection.setKeepAlive(_PROBE_EVERY, _PROBES)
        except libvirt.libvirtError:
            pass  # a connection without a wire has nothing to probe
        for kind, callback in (
            (libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._lifecycle),
            (libvirt.VIR_DOMAIN_EVENT_ID_REBOOT, self._reboot),
            (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, self._removed),
            (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVAL_FAILED, self._kept),
        ):
            connection.domainEventRegisterAny(None, kind, callback, None)
        return connection

    # Called in the thread of libvirt's events.

    def _lifecycle(self, _: Any, domain: libvirt.virDomain, event: int, detail: int, __: Any) -> None:
        self._tell(Event("lifecycle", domain.UUIDString(), event, detail))

    def _reboot(self, _: Any, domain: libvirt.virDomain, __: Any) -> None:
        self._tell(Event("reboot", domain.UUIDString()))

    def _removed(self, _: Any, domain: libvirt.virDomain, device: str, __: Any) -> None:
        self._tell(Event("device removed", domain.UUIDString(), device=device))

    def _kept(self, _: Any, domain: libvirt.virDomain, device: str, __: Any) -> None:
        self._tell(Event("device kept", domain.UUIDString(), device=device))

    def _tell(self, event: Event) -> None:
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            loop.call_soon_threadsafe(self._spread, event)
        except RuntimeError:
            pass  # closed meanwhile

    def _spread(self, event: Event) -> None:
        for callback in list(self._callbacks):
            try:
                callback(event)
            except Exception:
                log.exception("an event of libvirt could not be dealt with")


def in_thread(call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """Starts the call. Its thread ends with the process, should it hang."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result: T | None = None
        trouble: BaseException | None = None
        try:
            result = call(*args)
        except BaseException as error:  # whatever it is, it is the waiting task's
            trouble = error
        try:
            loop.call_soon_threadsafe(settle, result, trouble)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    threading.Thread(target=work, name="libvirt call", daemon=True).start()
    return future


async def finished(future: asyncio.Future[T], stop: Callable[[], object] | None = None) -> T:
    """Waits to the end also when cancelled: only then may somebody else touch the guest."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if stop is not None and not future.done():
            stopping = in_thread(stop)
            stopping.add_done_callback(lambda done: done.exception())
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                continue
        if not future.cancelled():
            future.exception()  # the cancellation counts
        raise


def _close(connection: libvirt.virConnect) -> None:
    import libvirt

    try:
        connection.close()
    except libvirt.libvirtError:
        pass


_events = threading.Lock()
_events_started = False


def start_events() -> None:
    """The one thread of libvirt's events; it has to be there before the first connection."""
    global _events_started
    import libvirt

    with _events:
        if _events_started:
            return
        libvirt.virEventRegisterDefaultImpl()
        # Errors are raised as well; on the terminal nobody needs them.
        libvirt.registerErrorHandler(lambda *_: None, None)
        threading.Thread(target=_run_events, name="libvirt events", daemon=True).start()
        _events_started = True


def _run_events() -> None:
    import libvirt

    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError as error:
            log.warning("libvirt's events: %s", error)
