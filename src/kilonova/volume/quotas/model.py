"""Limits and usage of projects. Usage is counted from the rows of volumes and snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kilonova.http.errors import TooLarge
from kilonova.store import Reader, Transaction

if TYPE_CHECKING:
    from kilonova.config import Config

DEFAULT_CLASS = "default"
# Resources with an additional limit for each volume type.
PER_TYPE = ("volumes", "gigabytes", "snapshots")
RESOURCES = (*PER_TYPE, "per_volume_gigabytes", "backups", "backup_gigabytes", "groups")

_CLASS = "SELECT resource, hard_limit FROM volume_quota_classes WHERE class_name = $1"
_PROJECT = "SELECT resource, hard_limit FROM volume_quotas WHERE project_id = $1"
# A snapshot counts for its volume's type, with the size of the volume.
_USED = """
SELECT t.name, u.volumes, u.snapshots, u.gigabytes FROM (
    SELECT type_id, SUM(volumes) AS volumes, SUM(snapshots) AS snapshots, SUM(size) AS gigabytes FROM (
        SELECT type_id, 1 AS volumes, 0 AS snapshots, size FROM volumes WHERE project_id = $1
        UNION ALL
        SELECT v.type_id, 0 AS volumes, 1 AS snapshots, s.size
        FROM volume_snapshots s JOIN volumes v ON v.id = s.volume_id WHERE s.project_id = $1
    ) each_thing GROUP BY type_id
) u JOIN volume_types t ON t.id = u.type_id
"""


async def check(
    tx: Transaction,
    project_id: str,
    type_name: str,
    *,
    config: Config,
    volumes: int = 0,
    gigabytes: int = 0,
    snapshots: int = 0,
    size: int | None = None,
) -> None:
    """Refuse (413) a request beyond the quota of the project or of the type. `size` is that of one volume.

    Other requests of the project wait until `tx` ends.
    """
    requested = {"volumes": volumes, "gigabytes": gigabytes, "snapshots": snapshots}
    await hold(tx, project_id)
    limit = await limits(tx, project_id, config)
    _check_size(size, limit["per_volume_gigabytes"])
    _check_room(requested | _of_type(requested, type_name), await usage(tx, project_id), limit)


async def check_retype(tx: Transaction, project_id: str, type_name: str, gigabytes: int, *, config: Config) -> None:
    """Refuse (413) a retype beyond the quota of the new type. The project's quota is not affected."""
    await hold(tx, project_id)
    requested = _of_type({"volumes": 1, "gigabytes": gigabytes}, type_name)
    _check_room(requested, await usage(tx, project_id), await limits(tx, project_id, config))


async def limits(reader: Reader, project_id: str, config: Config) -> dict[str, int]:
    """All limits of the project, including those of each type; -1 is unlimited."""
    return await class_limits(reader, DEFAULT_CLASS, config) | await _rows(reader, _PROJECT, project_id)


async def class_limits(reader: Reader, name: str, config: Config) -> dict[str, int]:
    """The limits of a quota class. Only the class `default` is used."""
    found: dict[str, int] = {resource: getattr(config.volume_quota, resource) for resource in RESOURCES}
    return found | dict.fromkeys(await _type_resources(reader), -1) | await _rows(reader, _CLASS, name)


async def usage(reader: Reader, project_id: str) -> dict[str, int]:
    """The usage of the project, in total and for each type."""
    used = dict.fromkeys(PER_TYPE, 0)
    for row in await reader.fetch(_USED, project_id):
        for resource in PER_TYPE:
            number = int(row[resource])
            used[resource] += number
            used[f"{resource}_{row['name']}"] = number
    return used


async def set_limits(tx: Transaction, project_id: str, values: Mapping[str, int]) -> None:
    await tx.execute_many(
        """
        INSERT INTO volume_quotas (project_id, resource, hard_limit) VALUES ($1, $2, $3)
        ON CONFLICT (project_id, resource) DO UPDATE SET hard_limit = excluded.hard_limit
        """,
        [(project_id, resource, limit) for resource, limit in values.items()],
    )


async def set_class_limits(tx: Transaction, name: str, values: Mapping[str, int]) -> None:
    await tx.execute_many(
        """
        INSERT INTO volume_quota_classes (class_name, resource, hard_limit) VALUES ($1, $2, $3)
        ON CONFLICT (class_name, resource) DO UPDATE SET hard_limit = excluded.hard_limit
        """,
        [(name, resource, limit) for resource, limit in values.items()],
    )


async def reset(tx: Transaction, project_id: str) -> None:
    """Delete the limits of the project, so that the defaults apply."""
    await tx.execute("DELETE FROM volume_quotas WHERE project_id = $1", project_id)


async def rename_type(tx: Transaction, old: str, new: str) -> None:
    """Keep the limits of a renamed type: their keys contain its name."""
    await delete_type(tx, new)
    for resource in PER_TYPE:
        for table in ("volume_quotas", "volume_quota_classes"):
            await tx.execute(
                f"UPDATE {table} SET resource = $2 WHERE resource = $1", f"{resource}_{old}", f"{resource}_{new}"
            )


async def delete_type(tx: Transaction, name: str) -> None:
    resources = [f"{resource}_{name}" for resource in PER_TYPE]
    for table in ("volume_quotas", "volume_quota_classes"):
        await tx.execute(f"DELETE FROM {table} WHERE resource = ANY($1)", resources)


async def hold(tx: Transaction, project_id: str) -> None:
    await tx.lock(f"volume quota:{project_id}")


async def _rows(reader: Reader, sql: str, key: str) -> dict[str, int]:
    return {row["resource"]: row["hard_limit"] for row in await reader.fetch(sql, key)}


async def _type_resources(reader: Reader) -> list[str]:
    rows = await reader.fetch("SELECT name FROM volume_types ORDER BY name")
    return [f"{resource}_{row['name']}" for row in rows for resource in PER_TYPE]


def _of_type(requested: Mapping[str, int], type_name: str) -> dict[str, int]:
    return {f"{resource}_{type_name}": number for resource, number in requested.items()}


def _check_size(size: int | None, limit: int) -> None:
    if size is not None and 0 <= limit < size:
        raise TooLarge(f"Requested volume size {size} is larger than maximum allowed limit {limit}.")


def _check_room(requested: Mapping[str, int], used: Mapping[str, int], limits: Mapping[str, int]) -> None:
    for resource, number in requested.items():
        limit, usage = limits.get(resource, -1), used.get(resource, 0)
        if number > 0 and 0 <= limit < usage + number:
            raise TooLarge(_exceeded(resource, number, usage, limit))


def _exceeded(resource: str, number: int, usage: int, limit: int) -> str:
    if resource.startswith("gigabytes"):
        return (
            f"Requested volume or snapshot exceeds allowed {resource} quota. Requested {number}G, quota is {limit}G and"
            f" {usage}G has been consumed."
        )
    noun = "snapshots" if resource.startswith("snapshots") else "volumes"
    return f"Maximum number of {noun} allowed ({limit}) exceeded for quota '{resource}'."
