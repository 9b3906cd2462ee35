"""Filters: which hosts can take a request at all. One file each: a pure function over columns, its reason beside it.

    reason = Reason("not in zone {need}", need=lambda request: request.zone, have=lambda request, host: host.zone)

    def passes(request, hosts): ...   # a mask over all rows, or `hosts.everywhere` if there is nothing to check

`need` and `have` are worked out only for the hosts that a diagnosis shows. A filter that rejects for more than one
cause gives `Reasons`; a host counts for the first that applies.

More names are optional: `reads = ("servers", "operations")` asks for the counts of `hosts.loads`, and
`even_if_forced = True` has the filter judge also the host that an administrator forces a server to. Where the number of
servers on a host decides, `room(hosts)` says how many more there may be: it is for `kilonova fit`. With
`on_rebuild = True` the filter also judges whether a server may stay on its host with another image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kilonova.scheduler import plugins
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Host, Hosts, Mask
    from kilonova.scheduler.stock import Numbers


class Reason:
    """Why a host was rejected: in words, and as what was needed and what was there."""

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
        """Which rows it rejects, where a filter has several reasons; the last may leave it out."""

    def text(self, request: Request) -> str:
        return self._text.format(need=self._need(request))

    def need(self, request: Request) -> str:
        return str(self._need(request))

    def have(self, request: Request, host: Host) -> str:
        return str(self._have(request, host))

    def parts(self, request: Request) -> Sequence[Reason]:
        return (self,)


class Reasons:
    """Several reasons of one filter, in the order in which they count."""

    def __init__(self, parts: Callable[[Request], Sequence[Reason]]) -> None:
        self.parts = parts


class Filter(NamedTuple):
    name: str
    reason: Reason | Reasons
    passes: Callable[[Request, Hosts], Mask]
    reads: tuple[str, ...] = ()
    """What it reads of hosts that is read for nobody else; see `loads`."""
    even_if_forced: bool = False
    """Whether it also judges a host that an administrator insists on."""
    room: Callable[[Hosts], Numbers] | None = None
    """How many more servers each host may have before the filter rejects it, where their number alone decides."""
    on_rebuild: bool = False
    """Whether it also judges a server that gets another image where it is."""


def all_of(hosts: Hosts, masks: Iterable[Mask]) -> Mask:
    """The rows of all these masks; `hosts.everywhere` itself where none of them leaves out any."""
    found = hosts.everywhere
    for mask in masks:
        if mask is not hosts.everywhere:
            found = found & mask
    return found


def load(names: Iterable[str]) -> tuple[Filter, ...]:
    """The configured filters, in their order. Raises ValueError for a name that is none."""
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
    except AttributeError as trouble:
        raise ValueError(f"{name!r} is no scheduler filter: {trouble}") from trouble
