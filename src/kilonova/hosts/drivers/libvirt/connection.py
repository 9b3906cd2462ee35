"""The connection to libvirt: runs calls in threads, reopens a lost connection, and delivers events to asyncio."""

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

# libvirt closes the connection after this many unanswered keepalive messages.
_KEEPALIVE_SECONDS = 5
_KEEPALIVE_COUNT = 3
_REOPEN_SECONDS = 1.0


class Event(NamedTuple):
    """An event of a domain. `kind`:

    lifecycle          `event` and `detail` are libvirt's VIR_DOMAIN_EVENT_…
    reboot             the guest rebooted by itself
    device removed     `device` is the alias of the device that the guest released
    device kept        the guest did not release `device`
    reconnected        events may have been missed; `guest_id` is empty
    """

    kind: str
    guest_id: str = ""
    event: int = -1
    detail: int = -1
    device: str = ""


class LibvirtError(DriverError):
    """An error of libvirt, with libvirt's code."""

    def __init__(self, message: str, code: int, *, passing: bool = False) -> None:
        super().__init__(message, passing=passing)
        self.code = code


class MissingDomain(LibvirtError):
    kind = "missing guest"


class Connection:
    """Every blocking call has its own thread, so that a long call does not delay others."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._open: libvirt.virConnect | None = None
        self._opening = threading.Lock()
        # Unfinished calls of `call_once`, and cached results, which are those of the connection `_results_of`.
        self._unfinished: dict[tuple[Any, ...], asyncio.Future[Any]] = {}
        self._results_lock = threading.Lock()
        self._results_of: libvirt.virConnect | None = None
        self._results: dict[tuple[Any, ...], Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._callbacks: list[Callable[[Event], None]] = []
        self._closed = False

    async def run(self, call: Callable[..., T], *args: Any, stop: Callable[[], object] | None = None) -> T:
        """Run `call(*args)` in a thread. A libvirtError becomes a LibvirtError.

        A cancellation takes effect only after the call has ended. `stop` is then called in a thread, to end it early.
        """
        self._loop = asyncio.get_running_loop()
        return await wait_until_done(in_thread(self._translated, call, *args), stop)

    async def call(self, call: Callable[..., T], *args: Any, stop: Callable[[], object] | None = None) -> T:
        """Like `run`, with the open connection as the first argument: `call(virConnect, *args)`."""
        return await self.run(self._connected, call, *args, stop=stop)

    async def call_once(self, call: Callable[..., T], *args: Any) -> T:
        """Like `call`, but calls libvirt once for each connection and caches the result. For calls that only read.

        A cancellation takes effect at once. The call goes on, and its result is cached for later callers.
        """
        self._loop = asyncio.get_running_loop()
        key = (call, *args)
        unfinished = self._unfinished.get(key)
        if unfinished is None:
            # Further callers wait for the same result, so that a libvirt that hangs blocks one thread only.
            unfinished = self._unfinished[key] = in_thread(self._translated, self._call_once, call, *args)
            unfinished.add_done_callback(lambda done: self._end_call(key, done))
        result: T = await asyncio.shield(unfinished)
        return result

    def _end_call(self, key: tuple[Any, ...], done: asyncio.Future[Any]) -> None:
        del self._unfinished[key]
        if not done.cancelled():
            done.exception()  # marks it as retrieved: all callers may have been cancelled

    def on_event(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call `callback` in the event loop for every event. Returns the function that unsubscribes it."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    async def keep_open(self) -> None:
        """Reopen the connection whenever it is lost, so that events arrive, until cancelled."""
        failing = False
        while True:
            try:
                await self.run(self._ensure_open)
                failing = False
            except DriverError as error:
                if not failing:
                    log.warning("libvirt at %s does not respond: %s", self.uri, error.message)
                failing = True
            await asyncio.sleep(_REOPEN_SECONDS)

    async def close(self) -> None:
        self._closed = True
        self._callbacks.clear()
        connection, self._open = self._open, None
        if connection is not None:
            await wait_until_done(in_thread(_close, connection))

    def open_connection(self) -> libvirt.virConnect:
        """For code that already runs in a thread. Raises libvirtError or DriverError."""
        return self._ensure_open()

    def _connected(self, call: Callable[..., T], *args: Any) -> T:
        return call(self._ensure_open(), *args)

    def _call_once(self, call: Callable[..., T], *args: Any) -> T:
        with self._results_lock:
            connection, key = self._ensure_open(), (call, *args)
            if self._results_of is not connection:
                self._results_of, self._results = connection, {}
            if key not in self._results:
                self._results[key] = call(connection, *args)
            result: T = self._results[key]
            return result

    def _translated(self, call: Callable[..., T], *args: Any) -> T:
        import libvirt

        try:
            return call(*args)
        except libvirt.libvirtError as error:
            raise self._translation(error) from error

    def _translation(self, error: libvirt.libvirtError) -> LibvirtError:
        import libvirt

        code, origin = error.get_error_code(), error.get_error_domain()
        message = str(error.get_error_message() or error).strip()
        lost = code in (libvirt.VIR_ERR_INVALID_CONN, libvirt.VIR_ERR_NO_CONNECT, libvirt.VIR_ERR_AUTH_UNAVAILABLE) or (
            origin in (libvirt.VIR_FROM_RPC, libvirt.VIR_FROM_REMOTE) and not self._is_alive()
        )
        if lost:
            return LibvirtError(f"libvirt at {self.uri} does not respond: {message}", code, passing=True)
        if code == libvirt.VIR_ERR_NO_DOMAIN:
            return MissingDomain(message, code)
        # A timeout means that another job of the domain holds its lock.
        return LibvirtError(message, code, passing=code == libvirt.VIR_ERR_OPERATION_TIMEOUT)

    def _is_alive(self) -> bool:
        import libvirt

        connection = self._open
        try:
            return connection is not None and bool(connection.isAlive())
        except libvirt.libvirtError:
            return False

    def _ensure_open(self) -> libvirt.virConnect:
        with self._opening:
            if self._closed:
                raise DriverError("the connection to libvirt is closed", passing=True)
            if self._open is not None:
                if self._is_alive():
                    return self._open
                log.warning("the connection to libvirt at %s was lost", self.uri)
                _close(self._open)
                self._open = None
            self._open = self._open_new()
        self._publish(Event("reconnected"))
        return self._open

    def _open_new(self) -> libvirt.virConnect:
        import libvirt

        start_event_loop()
        connection = libvirt.open(self.uri)
        try:
            connection.setKeepAlive(_KEEPALIVE_SECONDS, _KEEPALIVE_COUNT)
        except libvirt.libvirtError:
            pass  # local drivers have no keepalive
        for kind, callback in (
            (libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._lifecycle),
            (libvirt.VIR_DOMAIN_EVENT_ID_REBOOT, self._reboot),
            (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, self._removed),
            (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVAL_FAILED, self._removal_failed),
        ):
            connection.domainEventRegisterAny(None, kind, callback, None)
        return connection

    # Called in libvirt's event thread.

    def _lifecycle(self, _: Any, domain: libvirt.virDomain, event: int, detail: int, __: Any) -> None:
        self._publish(Event("lifecycle", domain.UUIDString(), event, detail))

    def _reboot(self, _: Any, domain: libvirt.virDomain, __: Any) -> None:
        self._publish(Event("reboot", domain.UUIDString()))

    def _removed(self, _: Any, domain: libvirt.virDomain, device: str, __: Any) -> None:
        self._publish(Event("device removed", domain.UUIDString(), device=device))

    def _removal_failed(self, _: Any, domain: libvirt.virDomain, device: str, __: Any) -> None:
        self._publish(Event("device kept", domain.UUIDString(), device=device))

    def _publish(self, event: Event) -> None:
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            loop.call_soon_threadsafe(self._dispatch, event)
        except RuntimeError:
            pass  # the loop was closed meanwhile

    def _dispatch(self, event: Event) -> None:
        for callback in list(self._callbacks):
            try:
                callback(event)
            except Exception:
                log.exception("handling a libvirt event failed")


def in_thread(call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """Start the call in a daemon thread, which does not keep the process alive if it hangs."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def set_outcome(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = call(*args)
        except BaseException as error:  # raised in the waiting task
            failure = error
        try:
            loop.call_soon_threadsafe(set_outcome, result, failure)
        except RuntimeError:
            pass  # the loop is closed, so no task waits

    threading.Thread(target=work, name="libvirt call", daemon=True).start()
    return future


async def wait_until_done(future: asyncio.Future[T], stop: Callable[[], object] | None = None) -> T:
    """Wait for the future even when cancelled: other commands must not touch the guest before."""
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
            future.exception()  # mark as retrieved: the cancellation is raised instead
        raise


def _close(connection: libvirt.virConnect) -> None:
    import libvirt

    try:
        connection.close()
    except libvirt.libvirtError:
        pass


_event_loop_lock = threading.Lock()
_event_loop_started = False


def start_event_loop() -> None:
    """Start the process's only libvirt event thread. Required before the first connection is opened."""
    global _event_loop_started
    import libvirt

    with _event_loop_lock:
        if _event_loop_started:
            return
        libvirt.virEventRegisterDefaultImpl()
        # Errors are raised as exceptions; do not print them to stderr as well.
        libvirt.registerErrorHandler(lambda *_: None, None)
        threading.Thread(target=_run_event_loop, name="libvirt events", daemon=True).start()
        _event_loop_started = True


def _run_event_loop() -> None:
    import libvirt

    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError as error:
            log.warning("libvirt's event loop: %s", error)
