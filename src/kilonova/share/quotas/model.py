"""Limits and usage of projects. Usage is counted from the rows of shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kilonova.http.errors import TooLarge
from kilonova.store import Reader, Transaction

if TYPE_CHECKING:
    from kilonova.config import Config

RESOURCES = ("shares", "gigabytes", "per_share_gigabytes")
_USED = "SELECT COUNT(*) AS shares, COALESCE(SUM(size), 0) AS gigabytes FROM shares WHERE project_id = $1"


async def check(
    tx: Transaction, project_id: str, *, config: Config, shares: int = 0, gigabytes: int = 0, size: int
) -> None:
    """Refuse (413) a request beyond the quota of the project. Other requests of the project wait until `tx` ends."""
    await hold(tx, project_id)
    limit, used = await limits(tx, project_id, config), await usage(tx, project_id)
    if 0 <= limit["per_share_gigabytes"] < size:
        raise TooLarge(
            f"Requested share size {size}G is larger than the limit per_share_gigabytes of"
            f" {limit['per_share_gigabytes']}G."
        )
    if gigabytes and 0 <= limit["gigabytes"] < used["gigabytes"] + gigabytes:
        raise TooLarge(
            f"Requested share exceeds allowed gigabytes quota: {gigabytes}G requested, quota is"
            f" {limit['gigabytes']}G and {used['gigabytes']}G has been consumed."
        )
    if shares and 0 <= limit["shares"] < used["shares"] + shares:
        raise TooLarge(f"Maximum number of shares allowed ({limit['shares']}) exceeded.")


async def limits(reader: Reader, project_id: str, config: Config) -> dict[str, int]:
    """The limits of the project; -1 is unlimited."""
    rows = await reader.fetch("SELECT resource, hard_limit FROM share_quotas WHERE project_id = $1", project_id)
    return defaults(config) | {row["resource"]: row["hard_limit"] for row in rows}


def defaults(config: Config) -> dict[str, int]:
    return {resource: getattr(config.share_quota, resource) for resource in RESOURCES}


async def usage(reader: Reader, project_id: str) -> dict[str, int]:
    row = await reader.fetch_one(_USED, project_id)
    assert row is not None
    return {"shares": int(row["shares"]), "gigabytes": int(row["gigabytes"]), "per_share_gigabytes": 0}


async def set_limits(tx: Transaction, project_id: str, values: Mapping[str, int]) -> None:
    await tx.execute_many(
        """
        INSERT INTO share_quotas (project_id, resource, hard_limit) VALUES ($1, $2, $3)
        ON CONFLICT (project_id, resource) DO UPDATE SET hard_limit = excluded.hard_limit
        """,
        [(project_id, resource, limit) for resource, limit in values.items()],
    )


async def reset(tx: Transaction, project_id: str) -> None:
    """Delete the limits of the project, so that the defaults apply."""
    await tx.execute("DELETE FROM share_quotas WHERE project_id = $1", project_id)


async def hold(tx: Transaction, project_id: str) -> None:
    await tx.lock(f"share quota:{project_id}")
