"""Records requests in the audit log: who did what to what, from where, and with which result."""

from __future__ import annotations

import re
import socket
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from kilonova.http import dry_run
from kilonova.http.api import Actions
from kilonova.telemetry import context

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kilonova.http.app import _Request
    from kilonova.http.context import Response
    from kilonova.telemetry.audit import AuditLog

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "update", "DELETE": "delete"}
# Last segments of paths to which a POST changes the object before them instead of creating one below it.
_CHANGES = frozenset({"accept", "deactivate", "import", "password", "reactivate"})
_UNNAMED_SEGMENTS = frozenset({"action", "actions"})
_VERSION = re.compile(r"v\d[\d.]*")
_REFUSED = (401, 403, 429)
_MAX_TEXT_LENGTH = 255
_HOST = socket.gethostname()


def record(request: _Request, response: Response) -> None:
    """Record the request, unless it is a read that was not refused.

    Requests between services of this process have no client. They belong to a request or operation that is recorded.
    """
    audit = request.app.services.audit
    if request.api is None or not request.origin.address:
        return
    status = response.status or 200
    notes = request.ctx.audit if request.ctx is not None else {}
    is_read = request.method not in _VERBS or _is_dry_run(request)
    if is_read and not audit.reads and status not in _REFUSED and not (status >= 400 and "reason" in notes):
        return
    token = getattr(request.ctx, "token", None)
    described = _described(request)
    write(
        audit,
        request.api.name,
        action="read" if is_read else described.action,
        initiator=_initiator(token, notes, request.origin.address),
        target=_target(request, described, token, notes, response),
        reason=_reason(request, token, notes, status),
        request_id=request.request_id,
    )


def write(
    audit: AuditLog,
    service: str,
    *,
    action: str,
    initiator: Mapping[str, Any],
    target: Mapping[str, Any],
    reason: Mapping[str, Any],
    request_id: str,
) -> None:
    """Write the event of a request. The `code` of the reason is the status of the response."""
    if not audit.enabled:
        return
    event = {
        "action": action,
        "outcome": "success" if reason["code"] < 400 else "failure",
        "initiator": initiator,
        "target": target,
        "observer": {"type": f"service/{service}", "host": _HOST},
        "reason": reason,
        "request_id": request_id,
    }
    if (global_request_id := context.global_request_id.get()) is not None:
        event["global_request_id"] = global_request_id
    audit.write(event)


def _is_dry_run(request: _Request) -> bool:
    route = getattr(request.ctx, "route", None)
    return route is not None and route.dry_run and dry_run.is_true(request.headers)


class Described(NamedTuple):
    """What a route does: the action, the type of the target, the parameter with its id, and its other parameters."""

    action: str
    type: str
    id_parameter: str | None = None
    parents: tuple[str, ...] = ()
    creates: bool = False


def _described(request: _Request) -> Described:
    assert request.api is not None
    service, method = request.api.name, request.method
    route = getattr(request.ctx, "route", None)
    if route is None and request.matched is not None:
        # Refused before the route was known: the path may have other methods, or several actions.
        methods = request.matched[0]
        route = methods.get(method) or next(iter(methods.values()))
    if route is None:
        return Described(_VERBS.get(method, "read"), service)
    if isinstance(route, Actions):
        return describe(service, method, next(iter(route.by_name.values())).path, "")
    return describe(service, method, route.path, route.action, public=route.public)


@cache
def describe(service: str, method: str, path: str, action: str | None, *, public: bool = False) -> Described:
    """`POST /servers/{server_id}/action#reboot` is `update/reboot` of a `compute/servers`."""
    segments = [segment for segment in path.split("/") if segment and not _VERSION.fullmatch(segment)]
    parameters = [segment[1:-1] for segment in segments if segment[0] == "{"]
    nouns = [segment for segment in segments if segment[0] != "{"]
    verb = _VERBS.get(method, "read")
    if action is not None:
        verb = f"update/{action}" if action else "update"
    elif method == "POST" and nouns and nouns[-1] in _CHANGES and parameters:
        verb = f"update/{nouns.pop()}"
    elif public and method == "POST":
        verb = "authenticate"
    nouns = [noun for noun in nouns if noun not in _UNNAMED_SEGMENTS]
    shown = [name for name in parameters if name != "token"]
    kind = "/".join([service, *nouns])
    creates = verb == "create"
    if creates and parameters and segments[-1][0] != "{":
        return Described(verb, kind, None, tuple(shown), creates)
    return Described(verb, kind, shown[-1] if shown else None, tuple(shown[:-1]), creates)


def _initiator(token: Any, notes: Mapping[str, Any], address: str) -> dict[str, Any]:
    who: dict[str, Any] = {"address": address}
    if token is None:
        return {**notes.get("user", {}), **who}
    who |= {"id": token.user_id, "name": token.user_name, "domain_id": token.user_domain_id}
    if token.project_id is not None:
        who["project_id"] = token.project_id
    elif token.system:
        who["system"] = True
    elif token.domain_id is not None:
        who["scope_domain_id"] = token.domain_id
    who["roles"] = sorted(token.roles)
    if audit_id := getattr(token, "audit_id", ""):
        who["audit_id"] = audit_id
    if (trust := getattr(token, "trust", None)) is not None:
        # A trust may let its trustee act as the trustor.
        who |= {"trust_id": trust.id, "trustee_user_id": trust.trustee_user_id}
    if (credential := getattr(token, "application_credential", None)) is not None:
        who["application_credential_id"] = credential.id
    return who


def _target(
    request: _Request, described: Described, token: Any, notes: Mapping[str, Any], response: Response
) -> dict[str, Any]:
    parameters = request.matched[1] if request.matched is not None else getattr(request.ctx, "params", {})
    target: dict[str, Any] = {"type": described.type}
    for name in described.parents:
        target[name] = parameters[name][:_MAX_TEXT_LENGTH]
    found = notes.get("target_id")
    if found is None and described.id_parameter is not None:
        found = parameters[described.id_parameter][:_MAX_TEXT_LENGTH]
    if found is None and described.creates and (response.status or 200) < 400:
        found = _created_id(response, described.type.rpartition("/")[2])
    if found is not None:
        target["id"] = found
    project_id = parameters.get("project_id") or notes.get("project_id", getattr(token, "project_id", None))
    if project_id is not None:
        target["project_id"] = project_id
    return target


def _created_id(response: Response, noun: str) -> str | list[str] | None:
    """The id of the created object in the response, or the ids of several."""
    body = response.body
    if isinstance(body, dict):
        if len(body) == 1:
            ((key, inner),) = body.items()
            if noun.removeprefix("os-") == key and not isinstance(inner, list):
                return None  # names that users choose, such as metadata
            body = inner
        if isinstance(body, list):
            return [found for item in body if (found := _id_of(item)) is not None] or None
        if (found := _id_of(body)) is not None:
            return found
    location = (response.headers or {}).get("Location", "")
    return location.rpartition("/")[2] or None


def _id_of(shown: object) -> str | None:
    if not isinstance(shown, dict):
        return None
    return next((str(shown[key]) for key in ("id", "uuid", "name") if isinstance(shown.get(key), str | int)), None)


def _reason(request: _Request, token: Any, notes: Mapping[str, Any], status: int) -> dict[str, Any]:
    reason: dict[str, Any] = {"code": status}
    if status >= 400 and "reason" in notes:
        reason["text"] = notes["reason"]
    elif status == 401 and token is None:
        reason["text"] = "the token is not valid" if "x-auth-token" in request.headers else "no token"
    return reason
