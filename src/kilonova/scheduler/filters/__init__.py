"""Filters: they reject hosts that cannot take a request. One file each: a pure function over columns, and its reason.

    reason = Reason("not in zone {need}", need=lambda request: request.zone, have=lambda request, host: host.zone)

    def passes(request, hosts): ...   # a mask over all rows, or `hosts.everywhere` if there is nothing to check

`need` and `have` are called only for the hosts that a diagnosis lists. A filter with several reasons has `Reasons`; a
host counts for the first reason that applies.

Optional names: `reads = ("servers", "operations")` requests the counts of `hosts.loads`. With `even_if_forced = True`
the filter also checks a host that an administrator forces. With `on_rebuild = True` it also checks whether a server may
stay on its host with another image. A filter that limits the number of servers has `room(hosts)`: how many more servers
each host may have. `kilonova fit` uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kilonova.scheduler import plugins
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.arrays import Numbers
    from kilonova.scheduler.snapshot import Host, Hosts, Mask


class Reason:
    """Why a host was rejected: as text, and as what was needed and what the host has."""

    def __init__(
        self,
        text: str,
        *,
        need: Callable[[Request], object],
        have: Callable[[Request, Host], object],
        applies: Callable[[Request, Hosts], Mask] | None = None,
    ) -> None:
        self._text = text
        self._need = need
        self._have = have
        self.applies = applies
        """The rows it rejects, for filters with several reasons; the last reason needs none."""

    def text(self, request: Request) -> str:
        return self._text.format(need=self._need(request))

    def need(self, request: Request) -> str:
        return str(self._need(request))

    def have(self, request: Request, host: Host) -> str:
        return str(self._have(request, host))

    def parts(self, request: Request) -> Sequence[Reason]:
        return (self,)


class Reasons:
    """Several reasons of one filter; the first that applies counts."""

    def __init__(self, parts: Callable[[Request], Sequence[Reason]]) -> None:
        self.parts = parts


class Filter(NamedTuple):
    name: str
    reason: Reason | Reasons
    passes: Callable[[Request, Hosts], Mask]
    reads: tuple[str, ...] = ()
    """The counts of `host_load` that it reads."""
    even_if_forced: bool = False
    """Whether it also checks a host that an administrator forces."""
    room: Callable[[Hosts], Numbers] | None = None
    """How many more servers each host may have before the filter rejects it."""
    on_rebuild: bool = False
    """Whether it also checks a rebuild with another image."""


def all_of(hosts: Hosts, masks: Iterable[Mask]) -> Mask:
    """The rows in all masks; `hosts.everywhere` itself if no mask excludes any row."""
    found = hosts.everywhere
    for mask in masks:
        if mask is not hosts.everywhere:
            found = found & mask
    return found


def load(names: Iterable[str]) -> tuple[Filter, ...]:
    """Load filters by name. Raises ValueError for an unknown name."""
    return tuple(_load(name) for name in names)


def _load(name: str) -> Filter:
    module = plugins.find(plugins.FILTERS, name)
    try:
        return Filter(
            name.rpartition(".")[2],
            module.reason,
            module.passes,
            tuple(getattr(module, "reads", ())),
            bool(getattr(module, "even_if_forced", False)),
            getattr(module, "room", None),
            bool(getattr(module, "on_rebuild", False)),
        )
    except AttributeError as error:
        raise ValueError(f"{name!r} is not a scheduler filter: {error}") from error
