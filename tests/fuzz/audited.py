"""Checks the audit log's event of a write to any route."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from kilonova.http.api import Route
from kilonova.http.client import ClientResponse
from tests.fuzz.routes import RouteWalker
from tests.support.audit import CLIENT_ADDRESS

VERSIONS = ("v1", "v2", "v2.0", "v3")
METHODS = {"POST": "create", "PUT": "update", "PATCH": "update", "DELETE": "delete"}
# Action and noun of POST routes that create nothing, and are not `…/action`.
CHANGES = {
    "POST /v3/auth/tokens": ("authenticate", "auth/tokens"),
    "POST /v3/users/{user_id}/password": ("update/password", "users"),
    "POST /v2/images/{image_id}/import": ("update/import", "images"),
    "POST /v2/images/{image_id}/actions/deactivate": ("update/deactivate", "images"),
    "POST /v2/images/{image_id}/actions/reactivate": ("update/reactivate", "images"),
    "POST /os-volume-transfer/{transfer_id}/accept": ("update/accept", "os-volume-transfer"),
    "POST /volume-transfers/{transfer_id}/accept": ("update/accept", "volume-transfers"),
}


def check_events(events: list[dict[str, Any]], walk: RouteWalker, route: Route, answer: ClientResponse) -> None:
    """There is exactly one event, with the action, target and outcome of the request."""
    (event,) = events
    action, noun = _expected(route)
    target = event["target"]
    assert (event["action"], target["type"]) == (action, f"{walk.api.name}/{noun}"), route.key
    assert event["outcome"] == ("success" if answer.status < 400 else "failure"), route.key
    assert event["reason"]["code"] == answer.status, route.key
    assert event["request_id"] == answer.headers["x-openstack-request-id"], route.key
    assert event["initiator"]["address"] == CLIENT_ADDRESS, route.key
    # Hosts have tickets and no users.
    assert event["initiator"].get("name") == (None if "/kilonova/" in route.path else "admin"), route.key
    parameters = _parameters(route, walk.path(route))
    if action == "create" and not route.path.endswith("}"):
        created = _shown_ids(answer)
        assert (target.get("id") in created) if created else True, (route.key, target, created)
    elif parameters:
        assert target["id"] == parameters.popitem()[1], (route.key, target)
    for name, value in parameters.items():
        assert target[name] == value, (route.key, target)


def _expected(route: Route) -> tuple[str, str]:
    if route.key in CHANGES:
        return CHANGES[route.key]
    segments = [part for part in route.path.split("/") if part and part[0] != "{" and part not in VERSIONS]
    if route.action is not None:
        return f"update/{route.action}", "/".join(segments[:-1])
    return METHODS[route.method], "/".join(segments)


def _parameters(route: Route, path: str) -> dict[str, str]:
    """The values of the path's parameters. The path may have a version and a project before the route's."""
    names = [part for part in route.path.split("/") if part]
    values = [unquote(part) for part in path.partition("?")[0].split("/")][-len(names) :]
    return {name[1:-1]: value for name, value in zip(names, values, strict=True) if name[0] == "{"}


def _shown_ids(answer: ClientResponse) -> set[str]:
    """The ids of the object that the response shows, if it shows one."""
    if answer.status >= 300 or not answer.body:
        return set()
    body = answer.json()
    shown = next(iter(body.values())) if len(body) == 1 else body
    return {str(shown[key]) for key in ("id", "uuid", "name") if shown.get(key)} if isinstance(shown, dict) else set()
