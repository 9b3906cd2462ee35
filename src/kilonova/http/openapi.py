"""The OpenAPI document of an API at one version, read from the same tables that answer its requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from kilonova.http.api import Api, Form, Route
from kilonova.http.errors import BadRequest

_PARAMETER = re.compile(r"\{(\w+)\}")
_NUMBER = re.compile("[0-9]{1,9}")
_ERRORS = {
    "400": "The request is malformed, or names something that cannot be.",
    "401": "There is no valid token.",
    "403": "Policy or quota does not allow it.",
    "404": "It does not exist, or not at this version.",
    "409": "It does not fit the present state.",
    "default": "Something else is wrong.",
}
_DRY_RUN = {
    "name": "X-Kilonova-Dry-Run",
    "in": "header",
    "description": "With 1 nothing changes, and the answer is the plan of what would.",
    "schema": {"type": "string", "enum": ["0", "1"]},
}
_FAULT = {
    "type": "object",
    "description": "One key, the kind of error.",
    "additionalProperties": {
        "type": "object",
        "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
        "required": ["code", "message"],
    },
}


# The error of APIs that have a view of that name.
_ERRORS_LISTED = {
    "type": "object",
    "properties": {"errors": {"type": "array", "items": {"$ref": "#/components/schemas/error"}}},
    "required": ["errors"],
}


def page(api: Api, asked: str | None) -> bytes:
    """The document at the version that a caller asks for, as JSON; the newest if none."""
    asked = asked or "latest"
    major, _, minor = f"{api.major}.{api.high}".partition(".") if asked == "latest" else asked.partition(".")
    if major != str(api.major) or not _NUMBER.fullmatch(minor) or not api.low <= int(minor) <= api.high:
        raise BadRequest(
            f"Invalid input for query key version: {asked[:40]!r} is not one of "
            f"{api.major}.{api.low} to {api.major}.{api.high} or latest."
        )
    return _page_at(api, int(minor))


@cache
def _page_at(api: Api, minor: int) -> bytes:
    import orjson

    return orjson.dumps(document(api, minor))


def document(api: Api, minor: int) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for one in api.pages.values():
        _operation(paths, one.path, one, _described_page(one))
    root = f"/{api.roots[0]}" if api.roots else ""
    for path, method, routes in _grouped(api, minor):
        _operation(paths, root + path, routes[0], _described(api, minor, method, routes))
    version = f"{api.major}.{minor}" if api.major else "1"
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Kilonova {api.name} API", "version": version},
        "servers": [{"url": api.prefix}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}},
            "parameters": {"version": _version_parameter(api, version)} if api.major else {},
            "schemas": {
                "fault": _ERRORS_LISTED if "error" in api.views else _FAULT,
                **{_name(view.name): view.schema(minor) for view in api.views.values() if view.at(minor)},
            },
            "responses": {
                status: {
                    "description": words,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/fault"}}},
                }
                for status, words in _ERRORS.items()
            },
        },
    }


def _grouped(api: Api, minor: int) -> Iterable[tuple[str, str, list[Route]]]:
    """The routes that this version has; the actions of one path are one operation."""
    grouped: dict[tuple[str, str], list[Route]] = {}
    for route in api.routes.values():
        if route.table[minor - api.low] is not None:
            grouped.setdefault((route.path, route.method), []).append(route)
    return ((path, method, routes) for (path, method), routes in sorted(grouped.items()))


def _operation(paths: dict[str, dict[str, Any]], path: str, route: Route, described: dict[str, Any]) -> None:
    at = paths.setdefault(path, {})
    names = _PARAMETER.findall(path)
    if names:
        at["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    at[route.method.lower()] = described


def _described_page(page: Route) -> dict[str, Any]:
    return {
        "operationId": page.key,
        "summary": page.summary,
        "security": [],
        "parameters": [_query_parameter(key, schema) for key, schema in (page.query or {}).items()],
        "responses": {"200": {"description": "Success."}, "default": {"$ref": "#/components/responses/default"}},
    }


def _described(api: Api, minor: int, method: str, routes: list[Route]) -> dict[str, Any]:
    forms = [form for route in routes if (form := route.table[minor - api.low]) is not None]
    first = routes[0]
    described: dict[str, Any] = {
        "operationId": f"{method} {first.path}",
        "summary": first.summary if first.action is None else "Do one of: " + ", ".join(_actions(routes)),
        "tags": [first.path.split("/")[1] or api.name],
        "parameters": _parameters(api, forms[0]),
        "responses": _responses(api, routes, forms),
    }
    if any(route.dry_run for route in routes):
        described["parameters"].append(_DRY_RUN)
        described["responses"]["200"] = {"description": "The plan that was only tried."}
    rules = sorted({rule for route in routes for rule in (route.policy, *route.checks) if rule})
    if rules:
        described["x-policy"] = rules
    bodies = [form.body.schema for form in forms if form.body is not None]
    if bodies:
        schema = bodies[0] if first.action is None else {"oneOf": bodies}
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if first.public:
        described["security"] = []
    return described


def _actions(routes: list[Route]) -> list[str]:
    return [route.action for route in routes if route.action]


def _parameters(api: Api, form: Form) -> list[dict[str, Any]]:
    parameters = [_query_parameter(key, schema) for key, schema in form.query_keys.items()]
    if form.query_patterns:
        parameters.append(_patterns(form))
    return [{"$ref": "#/components/parameters/version"}, *parameters] if api.major else parameters


def _query_parameter(key: str, schema: dict[str, Any]) -> dict[str, Any]:
    schema = dict(schema)
    if schema.pop("multi", False):
        schema = {"type": "array", "items": schema}
    return {"name": key, "in": "query", "schema": schema}


def _patterns(form: Form) -> dict[str, Any]:
    """Keys that callers choose, as the members of one object that is spread over the query."""
    known = form.query.schema["patternProperties"]
    return {
        "name": "others",
        "in": "query",
        "description": "Any number of keys like these.",
        "style": "form",
        "explode": True,
        "schema": {
            "type": "object",
            "patternProperties": {key: {"type": "string"} for key in known},
            "additionalProperties": False,
        },
    }


def _version_parameter(api: Api, version: str) -> dict[str, Any]:
    return {
        "name": "OpenStack-API-Version",
        "in": "header",
        "description": f"The microversion; without it {api.major}.{api.low} applies.",
        "schema": {"type": "string", "default": f"{api.name} {version}"},
    }


def _responses(api: Api, routes: list[Route], forms: list[Form]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    # Of actions with one status, some show nothing or something else: then what is shown cannot be told by the status.
    open_ended = {form.status for route, form in zip(routes, forms, strict=True) if route.shows is None}
    for route, form in zip(routes, forms, strict=True):
        shown = _shown(route) if form.status not in open_ended else None
        answered = responses.setdefault(str(form.status), {"description": "Success."})
        if shown:
            schemas = answered.setdefault("content", {"application/json": {"schema": {"anyOf": []}}})
            schemas["application/json"]["schema"]["anyOf"].append(shown)
        for status in route.also:
            responses.setdefault(str(status), {"description": "Success."})
    for answered in responses.values():
        content = answered.get("content", {}).get("application/json")
        if content and len(content["schema"]["anyOf"]) == 1:
            content["schema"] = content["schema"]["anyOf"][0]
    return {**responses, **{status: {"$ref": f"#/components/responses/{status}"} for status in _ERRORS}}


def _shown(route: Route) -> dict[str, Any] | None:
    if route.shows is None:
        return None
    key, view, many = route.shows
    schema: dict[str, Any] = {"$ref": f"#/components/schemas/{_name(view)}"}
    if not key:
        return schema
    if many:
        schema = {"type": "array", "items": schema}
    return {"type": "object", "properties": {key: schema}, "required": [key]}


def _name(view: str) -> str:
    return view.replace(" ", "_")
