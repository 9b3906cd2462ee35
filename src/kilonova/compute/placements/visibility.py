"""Visibility of hosts in a diagnosis.

- Users who may see the server see reasons with counts.
- Managers and administrators of the server's project also see the hypervisors assigned to the project, by uuid. These
  are the ones that `GET /os-hypervisors` lists for them from 2.105 on. Other hosts with servers of the project are
  shared with other projects and stay hidden.
- Administrators of the cloud see every host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from kilonova.compute.hypervisors import model as hypervisors
from kilonova.http import Context
from kilonova.scheduler.explain import Rejection
from kilonova.store import Reader

RULE = "kilonova:servers:placement"
OWN_HOSTS = f"{RULE}:own_hosts"
ALL_HOSTS = f"{RULE}:all_hosts"

Names = tuple[str, str]

# Filters whose `need` and `have` only describe the host: no names of other users, no notes of operators.
_UNRESTRICTED_FILTERS = frozenset(
    {
        *("zone", "traits", "capacity", "arrangement", "aggregate_extra_specs", "image_properties", "capabilities"),
        *("anti_affinity", "num_instances", "io_ops"),
    }
)


class Visibility(msgspec.Struct, frozen=True):
    sees: Literal["reasons", "own hosts", "all hosts"] = "reasons"
    own: Mapping[Names, str] = {}
    """The uuids of hypervisors that the caller sees without names."""

    @property
    def all_hosts(self) -> bool:
        return self.sees == "all hosts"

    def identify(self, host: str, hypervisor_hostname: str) -> dict[str, str] | None:
        """The fields that identify a hypervisor to the caller; None if it is hidden."""
        if self.all_hosts:
            return {"host": host, "hypervisor_hostname": hypervisor_hostname}
        uuid = self.own.get((host, hypervisor_hostname))
        return None if uuid is None else {"hypervisor_uuid": uuid}

    def details(self, rejection: Rejection) -> dict[str, str]:
        """`need` and `have` of a rejection, if the caller may see them."""
        if self.all_hosts or rejection.filter in _UNRESTRICTED_FILTERS:
            return {"need": rejection.need, "have": rejection.have}
        return {}


async def get_visibility(ctx: Context, target: Mapping[str, str | None]) -> Visibility:
    """The caller's visibility for servers of the target's project."""
    if ctx.may(ALL_HOSTS, target):
        return Visibility("all hosts")
    if ctx.may(OWN_HOSTS, target):
        return Visibility("own hosts", await _own_hypervisors(ctx.db, target["project_id"]))
    return Visibility()


async def _own_hypervisors(reader: Reader, project_id: str | None) -> dict[Names, str]:
    found = [shown.hypervisor for shown in await hypervisors.assigned_to_project(reader, project_id)]
    return {(hypervisor.host, hypervisor.hypervisor_hostname): hypervisor.uuid for hypervisor in found}
