"""A host must have enough free capacity of every resource class, within the units of its inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason, Reasons
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Host, Hosts, Mask

UNITS = {"VCPU": "{} VCPU", "MEMORY_MB": "{} MB memory", "DISK_GB": "{} GB disk"}


def format_amount(resource_class: str, number: float) -> str:
    """`2048 MB memory`, `2 CUSTOM_THING`."""
    return UNITS.get(resource_class, f"{{}} {resource_class}").format(int(number))


def fits(resource_class: str, number: int, hosts: Hosts) -> Mask:
    inventory = hosts.inventory(resource_class)
    mask: Mask = inventory.max_allocation >= number
    if inventory.has_unit_rules:
        mask &= (inventory.min_unit <= number) & (number % inventory.step_size == 0)
    return mask


def _have(resource_class: str, number: int, host: Host) -> str:
    """First the units of the inventory, then the free capacity."""
    inventory, row = host.hosts.inventory(resource_class), host.row

    def text(value: float) -> str:
        return format_amount(resource_class, max(0, value))

    if inventory.capacity[row] <= 0:
        return f"no {resource_class}"
    if number > inventory.max_unit[row]:
        return f"at most {text(inventory.max_unit[row])} for one server"
    if number < inventory.min_unit[row]:
        return f"at least {text(inventory.min_unit[row])} for one server"
    if number % inventory.step_size[row]:
        return f"steps of {text(inventory.step_size[row])}"
    if inventory.max_allocation[row] < inventory.free[row]:
        return f"at most {text(inventory.max_allocation[row])} in one provider, {text(inventory.free[row])} in total"
    return f"{text(inventory.free[row])} free of {text(inventory.capacity[row])}"


def _reasons(resource_class: str, number: int) -> tuple[Reason, Reason]:
    """Too little is free; or enough is free, but not in one provider, or not within the units of the inventory."""

    def reason_for(text: str, enough: bool) -> Reason:
        return Reason(
            text,
            need=lambda _: format_amount(resource_class, number),
            have=lambda _, host: _have(resource_class, number, host),
            applies=lambda _, hosts: ~fits(resource_class, number, hosts) & (is_free(hosts) == enough),
        )

    def is_free(hosts: Hosts) -> Mask:
        mask: Mask = hosts.inventory(resource_class).free >= number
        return mask

    return reason_for("lack {need}", False), reason_for("cannot give one server {need}", True)


reason = Reasons(
    lambda request: [one for name, number in request.amounts_per_provider for one in _reasons(name, number)]
)

even_if_forced = True


def passes(request: Request, hosts: Hosts) -> Mask:
    mask = hosts.everywhere
    for name, number in request.amounts_per_provider:
        mask = mask & fits(name, number, hosts)
    return mask
