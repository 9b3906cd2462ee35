"""Networked hosts: hosts whose agent sets up the networks of its guests."""

from __future__ import annotations

from typing import NamedTuple

from kilonova.hosts.registry import COMPUTE
from kilonova.store import Reader


class NetworkedHost(NamedTuple):
    """`address` is where other hosts reach it."""

    name: str
    address: str


async def networked_hosts(reader: Reader) -> list[NetworkedHost]:
    rows = await reader.fetch("SELECT host, host_ip FROM hypervisors WHERE networked ORDER BY host")
    return [NetworkedHost(row["host"], row["host_ip"]) for row in rows]


# SQL conditions for queries of other tables. `host` and `since` are SQL expressions.


def is_networked_sql(host: str) -> str:
    return f"EXISTS (SELECT 1 FROM hypervisors h WHERE h.host = {host} AND h.networked)"


def is_up_sql(host: str, since: str) -> str:
    """The host's service is not forced down, and its last heartbeat is not older than `since`."""
    return (
        f"EXISTS (SELECT 1 FROM services v WHERE v.host = {host} AND v.program = '{COMPUTE}' "
        f"AND NOT v.forced_down AND v.last_seen_at >= {since})"
    )
