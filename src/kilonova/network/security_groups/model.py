"""Records and rules of security groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from kilonova.http.errors import Conflict
from kilonova.network import resources
from kilonova.network.errors import conflict, group_not_found
from kilonova.network.resources import Resource
from kilonova.network.schemas import to_bool
from kilonova.network.security_groups import rules
from kilonova.network.security_groups.rules import SecurityGroupRule
from kilonova.store import Reader, Transaction

DEFAULT_NAME = "default"
_ETHERTYPES = ("IPv4", "IPv6")
_DEFAULT_ID = "SELECT id FROM security_groups WHERE project_id = $1 AND is_default"


class SecurityGroup(Resource, frozen=True):
    table: ClassVar[str] = "security_groups"

    name: str
    stateful: bool
    is_default: bool


def new_group(project_id: str, body: Mapping[str, Any], now: float, *, is_default: bool = False) -> SecurityGroup:
    return SecurityGroup(
        **resources.standard_columns(project_id, body, now),
        name=body.get("name", ""),
        stateful=to_bool(body.get("stateful", True)),
        is_default=is_default,
    )


async def create(tx: Transaction, group: SecurityGroup) -> list[SecurityGroupRule]:
    """Insert the group with its first rules, and return these: egress, and in a default group ingress from itself."""
    await resources.insert(tx, group)
    created = [_rule(group, direction="egress", ethertype=ethertype) for ethertype in _ETHERTYPES]
    if group.is_default:
        created += [
            _rule(group, direction="ingress", ethertype=ethertype, remote_group_id=group.id)
            for ethertype in _ETHERTYPES
        ]
    for rule in created:
        await resources.insert(tx, rule)
    return created


def _rule(group: SecurityGroup, **values: str) -> SecurityGroupRule:
    return rules.new_rule(group.project_id, {"security_group_id": group.id, **values}, group.created_at)


async def default_group_id(reader: Reader, project_id: str) -> str | None:
    found = await reader.fetch_value(_DEFAULT_ID, project_id)
    return None if found is None else str(found)


async def ensure_default(tx: Transaction, project_id: str, now: float) -> str:
    """The id of the project's default group, which is created on first use."""
    found = await default_group_id(tx, project_id)
    if found is not None:
        return found
    await tx.lock(f"default security group {project_id}")
    found = await default_group_id(tx, project_id)
    if found is not None:
        return found
    body = {"name": DEFAULT_NAME, "description": "Default security group"}
    group = new_group(project_id, body, now, is_default=True)
    await create(tx, group)
    return group.id


async def check_usable(tx: Transaction, project_id: str, group_ids: list[str]) -> None:
    """Refuse groups of other projects."""
    found = await tx.fetch(
        "SELECT id FROM security_groups WHERE id = ANY($1) AND project_id = $2", group_ids, project_id
    )
    missing = set(group_ids) - {row["id"] for row in found}
    if missing:
        raise group_not_found(sorted(missing)[0])


async def rules_of(reader: Reader, group_ids: list[str]) -> dict[str, list[SecurityGroupRule]]:
    found: dict[str, list[SecurityGroupRule]] = {group_id: [] for group_id in group_ids}
    # The default rules of a group have the same `created_at`. They are listed in the order of the create response.
    sql = (
        "SELECT * FROM security_group_rules WHERE security_group_id = ANY($1) "
        "ORDER BY created_at, direction, ethertype, id"
    )
    for rule in SecurityGroupRule.decode_all(await reader.fetch(sql, group_ids)):
        found[rule.security_group_id].append(rule)
    return found


async def find_equal_rule(tx: Transaction, rule: SecurityGroupRule) -> str | None:
    """The id of an existing rule with the same content."""
    known = (await rules_of(tx, [rule.security_group_id]))[rule.security_group_id]
    return next((other.id for other in known if other.content == rule.content), None)


async def remove(tx: Transaction, group_id: str) -> None:
    await resources.lock_for_delete(tx, SecurityGroup, group_id)
    if await tx.fetch_value("SELECT 1 FROM port_security_groups WHERE security_group_id = $1 LIMIT 1", group_id):
        raise group_in_use(group_id)
    await resources.delete(tx, SecurityGroup, group_id)


def group_in_use(group_id: str) -> Conflict:
    return conflict("SecurityGroupInUse", f"Security Group {group_id} in use.")
