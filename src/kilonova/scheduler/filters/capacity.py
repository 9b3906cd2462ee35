"""A host must have room for every resource class, in an amount that it gives to one server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason, Reasons
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Host, Hosts, Mask

UNITS = {"VCPU": "{} VCPU", "MEMORY_MB": "{} MB memory", "DISK_GB": "{} GB disk"}


def amount(resource_class: str, number: float) -> str:
    """`2048 MB memory`, `2 CUSTOM_THING`."""
    return UNITS.get(resource_class, f"{{}} {resource_class}").format(int(number))


def fits(resource_class: str, number: int, hosts: Hosts) -> Mask:
    stock = hosts.stock(resource_class)
    mask: Mask = stock.room >= number
    if stock.odd:
        mask &= (stock.min_unit <= number) & (number % stock.step_size == 0)
    return mask


def _have(resource_class: str, number: int, host: Host) -> str:
    """What stands in the way: first what the host does not give to anyone, then what it has left."""
    stock, row = host.hosts.stock(resource_class), host.row
    if stock.limit[row] <= 0:
        return f"no {resource_class}"
    if number > stock.max_unit[row]:
        return f"at most {amount(resource_class, stock.max_unit[row])} for one server"
    if number < stock.min_unit[row]:
        return f"at least {amount(resource_class, stock.min_unit[row])} for one server"
    if number % stock.step_size[row]:
        return f"steps of {amount(resource_class, stock.step_size[row])}"
    if stock.room[row] < stock.free[row]:
        room, free = (amount(resource_class, max(0, number)) for number in (stock.room[row], stock.free[row]))
        return f"at most {room} in one place, {free} altogether"
    return f"{amount(resource_class, max(0, stock.free[row]))} free of {amount(resource_class, stock.limit[row])}"


def _short(resource_class: str, number: int) -> tuple[Reason, Reason]:
    """Too little is there; or there is enough, but not in one place, or not in the amounts that one server gets."""

    def reason_for(text: str, enough: bool) -> Reason:
        return Reason(
            text,
            need=lambda _: amount(resource_class, number),
            have=lambda _, host: _have(resource_class, number, host),
            applies=lambda _, hosts: ~fits(resource_class, number, hosts) & (is_there(hosts) == enough),
        )

    def is_there(hosts: Hosts) -> Mask:
        mask: Mask = hosts.stock(resource_class).free >= number
        return mask

    return reason_for("lack {need}", False), reason_for("cannot give one server {need}", True)


reason = Reasons(lambda request: [one for name, number in request.portions for one in _short(name, number)])

even_if_forced = True


def passes(request: Request, hosts: Hosts) -> Mask:
    mask = hosts.everywhere
    for name, number in request.portions:
        mask = mask & fits(name, number, hosts)
    return mask
