"""Helpers for tests of placement explanations."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.ids import new_id
from kilonova.placement import mark_hosts_changed
from kilonova.store import Database
from tests.support.full_cloud import FullCloud

HUGE = {"flavorRef": "5"}  # m1.xlarge needs more memory than a host has


async def attempts(c: FullCloud, server_id: str, *, as_: str = "member", **options: Any) -> list[dict[str, Any]]:
    answer = await c.get(f"/servers/{server_id}/kilonova-placement", as_=as_, **options)
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["attempts"]
    return found


async def create_unplaceable(c: FullCloud, **keys: Any) -> dict[str, Any]:
    """A server for which no host was found."""
    shown = await c.wait_until_settled((await c.boot(**{**HUGE, **keys}))["id"])
    assert shown["status"] == "ERROR", shown
    return shown


async def assign(db: Database, hosts: list[str], key: str, projects: str) -> None:
    """Assign hosts to projects by the metadata of an aggregate."""
    async with db.transaction() as tx:
        number = await tx.fetch_value(
            "INSERT INTO aggregates (uuid, name, created_at) VALUES ($1, $1, $2) RETURNING id", new_id(), clock.now()
        )
        await tx.execute("INSERT INTO aggregate_metadata VALUES ($1, $2, $3)", number, key, projects)
        await tx.execute_many("INSERT INTO aggregate_hosts VALUES ($1, $2)", [(number, one) for one in hosts])
        await mark_hosts_changed(tx, hosts)
