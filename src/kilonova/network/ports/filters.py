"""Filters of port lists."""

from __future__ import annotations

from kilonova.http.errors import BadRequest
from kilonova.http.filter_values import limited
from kilonova.network.listing import Attribute, Query

ATTRIBUTES = {
    "name": Attribute("r.name"),
    "network_id": Attribute("r.network_id"),
    "mac_address": Attribute("r.mac_address"),
    "admin_state_up": Attribute("r.admin_state_up", "boolean"),
    "status": Attribute("r.status"),
    "device_id": Attribute("r.device_id"),
    "device_owner": Attribute("r.device_owner"),
    "port_security_enabled": Attribute("r.port_security_enabled", "boolean"),
    "binding:host_id": Attribute("r.host_id", rule="get_port:binding:host_id"),
    "binding:vnic_type": Attribute("r.vnic_type"),
}
_COLUMNS = {"ip_address": "a.ip_address", "subnet_id": "a.subnet_id"}


def _has_address(query: Query, conditions: list[str]) -> None:
    query.add(f"EXISTS (SELECT 1 FROM port_addresses a WHERE a.port_id = r.id AND {' AND '.join(conditions)})")


def fixed_ips(query: Query, values: list[str]) -> None:
    """`fixed_ips=ip_address=10.0.0.3` or `fixed_ips=subnet_id=…`, both repeatable."""
    wanted: dict[str, list[str]] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or key not in (*_COLUMNS, "ip_address_substr"):
            raise BadRequest(f"Invalid filter for fixed_ips: {value[:80]!r}; ip_address=… or subnet_id=… is expected.")
        wanted.setdefault(key, []).append(text)
    conditions = [
        f"{_COLUMNS[key]} = ANY({query.arg(texts)})" for key, texts in wanted.items() if key != "ip_address_substr"
    ]
    for text in wanted.get("ip_address_substr", []):
        conditions.append(f"replace(a.ip_address, {query.arg(text)}, '') <> a.ip_address")
    _has_address(query, conditions)


def _address(key: str, query: Query, values: list[str]) -> None:
    _has_address(query, [f"{_COLUMNS[key]} = ANY({query.arg(values)})"])


def security_groups(query: Query, values: list[str]) -> None:
    ids = limited("security_groups", [group_id for value in values for group_id in value.split(",")])
    query.add(
        "EXISTS (SELECT 1 FROM port_security_groups g WHERE g.port_id = r.id "
        f"AND g.security_group_id = ANY({query.arg(ids)}))"
    )


def _filtered_by_api(_: Query, __: list[str]) -> None:
    """The route filters by status, because the current status is not a column."""


CUSTOM_FILTERS = {
    "status": _filtered_by_api,
    "fixed_ips": fixed_ips,
    "ip_address": lambda query, values: _address("ip_address", query, values),
    "subnet_id": lambda query, values: _address("subnet_id", query, values),
    "security_groups": security_groups,
}
