"""What a caller may see of hosts in a diagnosis.

Whoever may see the server sees reasons with counts. A manager or administrator of the server's project also sees the
project's own hosts: the hypervisors of hosts in an aggregate whose metadata `filter_tenant_id…` names the project,
that is those which `GET /os-hypervisors` lists for the same caller from 2.105 on; and as there by uuid, without names.
A host that the project merely has servers on is shared with others, and none of the project's business. Who looks
after the whole cloud sees every host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from kilonova.compute.hypervisors import model as hypervisors
from kilonova.http import Context
from kilonova.scheduler.explain import Rejection
from kilonova.store import Reader

RULE = "kilonova:servers:placement"
OWN_HOSTS = f"{RULE}:own_hosts"
ALL_HOSTS = f"{RULE}:all_hosts"

Names = tuple[str, str]

# Filters whose need and have say nothing but what is the host's own: no names of others, nor what operators noted.
_HARMLESS = frozenset(
    {
        *("zone", "traits", "capacity", "arrangement", "aggregate_extra_specs", "image_properties", "capabilities"),
        *("anti_affinity", "num_instances", "io_ops"),
    }
)


class Sight(msgspec.Struct, frozen=True):
    sees: Literal["reasons", "own hosts", "all hosts"] = "reasons"
    own: Mapping[Names, str] = {}
    """The uuids of the hypervisors that somebody sees without their names."""

    @property
    def everything(self) -> bool:
        return self.sees == "all hosts"

    def shown(self, host: str, hypervisor_hostname: str) -> dict[str, str] | None:
        """How a hypervisor is called for the caller; None if it is not shown at all."""
        if self.everything:
            return {"host": host, "hypervisor_hostname": hypervisor_hostname}
        uuid = self.own.get((host, hypervisor_hostname))
        return None if uuid is None else {"hypervisor_uuid": uuid}

    def details(self, rejection: Rejection) -> dict[str, str]:
        """What a rejected host needed and had, as far as the caller may read it."""
        if self.everything or rejection.filter in _HARMLESS:
            return {"need": rejection.need, "have": rejection.have}
        return {}


async def sight(ctx: Context, target: dict[str, Any]) -> Sight:
    """Of the caller, on the servers of the target's project."""
    if ctx.may(ALL_HOSTS, target):
        return Sight("all hosts")
    if ctx.may(OWN_HOSTS, target):
        return Sight("own hosts", await _own(ctx.db, target["project_id"]))
    return Sight()


async def _own(reader: Reader, project_id: str) -> dict[Names, str]:
    rows = await hypervisors.assigned(reader, project_id)
    return {(row["host"], row["hypervisor_hostname"]): row["uuid"] for row in rows}
