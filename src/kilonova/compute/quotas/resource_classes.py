"""Amounts of resource classes that servers need and use, for unified limits. They are the amounts that hosts claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.servers import states
from kilonova.compute.servers.server import EmbeddedFlavor
from kilonova.scheduler.requirements import Flavor, flavor_resources, host_requirements
from kilonova.store import Reader
from kilonova.unified_limits import CLASS_PREFIX, SERVERS

if TYPE_CHECKING:
    from kilonova.store import Row

_COUNTED = f"s.project_id = $1 AND NOT s.deleted AND s.vm_state <> '{states.SOFT_DELETED}'"
# Servers with equal needs are one row.
_SERVERS = f"""
SELECT s.flavor, s.image_properties, s.image_id IS NOT NULL AS root_disk, COUNT(*) AS number FROM servers s
WHERE {_COUNTED} GROUP BY s.flavor, s.image_properties, s.image_id IS NOT NULL
"""
# Servers whose flavor changes at the moment. The last move of the server has both flavors, also during its revert.
_CHANGING = f"""
SELECT s.flavor, s.image_properties, s.image_id IS NOT NULL AS root_disk, m.old_flavor, m.new_flavor
FROM operations o JOIN servers s ON s.id = o.server_id JOIN moves m ON m.server_id = o.server_id
WHERE {_COUNTED} AND o.finished_at IS NULL AND o.kind IN ('{kinds.RESIZE}', '{kinds.REVERT_RESIZE}')
AND m.id = (SELECT MAX(l.id) FROM moves l WHERE l.server_id = o.server_id)
"""
_decode_flavor = msgspec.json.Decoder(EmbeddedFlavor).decode
_decode_properties = msgspec.json.Decoder(dict[str, str]).decode


def needed(flavor: Flavor, image_properties: Mapping[str, str], *, root_disk: bool) -> Counter[str]:
    """What a server of the flavor needs, by name among unified limits."""
    amounts = Counter[str]()
    try:
        requirements = host_requirements(flavor, image_properties, root_disk=root_disk)
        for resources in (requirements["resources"], *(group.resources for group in requirements["groups"].values())):
            amounts.update(resources)
    except ValueError:
        amounts.update(flavor_resources(flavor, root_disk))
    return Counter({CLASS_PREFIX + name: amount for name, amount in amounts.items()})


async def used(reader: Reader, project_id: str) -> Counter[str]:
    """What the servers of the project use. The larger of both flavors counts while the flavor of a server changes."""
    total = Counter[str]()
    for row in await reader.fetch(_SERVERS, project_id):
        total[SERVERS] += row["number"]
        for name, amount in _needed_by(row, "flavor").items():
            total[name] += amount * row["number"]
    for row in await reader.fetch(_CHANGING, project_id):
        larger = _needed_by(row, "old_flavor") | _needed_by(row, "new_flavor")
        total.update(larger - _needed_by(row, "flavor"))
    return total


def _needed_by(row: Row, column: str) -> Counter[str]:
    return needed(
        _decode_flavor(row[column]), _decode_properties(row["image_properties"]), root_disk=bool(row["root_disk"])
    )
