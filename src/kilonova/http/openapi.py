"""The OpenAPI document of an API at one microversion, from the tables that serve its requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from kilonova.http.api import Api, Route, RouteVersion
from kilonova.http.errors import BadRequest

_PARAMETER = re.compile(r"\{(\w+)\}")
_NUMBER = re.compile("[0-9]{1,9}")
_ERRORS = {
    "400": "The request is malformed, or has an invalid value.",
    "401": "The token is missing or invalid.",
    "403": "Policy or quota does not allow the request.",
    "404": "The resource does not exist, or not at this version.",
    "409": "The request conflicts with the state of the resource.",
    "default": "Any other error.",
}
_DRY_RUN = {
    "name": "X-Kilonova-Dry-Run",
    "in": "header",
    "description": "With 1, nothing is changed, and the response is the plan.",
    "schema": {"type": "string", "enum": ["0", "1"]},
}
_FAULT = {
    "type": "object",
    "description": "One key, which names the kind of error.",
    "additionalProperties": {
        "type": "object",
        "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
        "required": ["code", "message"],
    },
}


# For APIs that have a view named "error".
_ERROR_LIST = {
    "type": "object",
    "properties": {"errors": {"type": "array", "items": {"$ref": "#/components/schemas/error"}}},
    "required": ["errors"],
}


def document_json(api: Api, requested: str | None) -> bytes:
    """The document at the requested version, by default the newest, as JSON."""
    requested = requested or "latest"
    major, _, minor = f"{api.major}.{api.high}".partition(".") if requested == "latest" else requested.partition(".")
    if major != str(api.major) or not _NUMBER.fullmatch(minor) or not api.low <= int(minor) <= api.high:
        raise BadRequest(
            f"Invalid input for query key version: {requested[:40]!r} is not one of "
            f"{api.major}.{api.low} to {api.major}.{api.high} or latest."
        )
    return _document_json_at(api, int(minor))


@cache
def _document_json_at(api: Api, minor: int) -> bytes:
    import orjson

    return orjson.dumps(build_document(api, minor))


def build_document(api: Api, minor: int) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in api.document_routes.values():
        _add_operation(paths, route.path, route, _describe_document(route))
    root = f"/{api.roots[0]}" if api.roots else ""
    for path, method, routes in _grouped_routes(api, minor):
        _add_operation(paths, root + path, routes[0], _describe(api, minor, method, routes))
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
                "fault": _ERROR_LIST if "error" in api.views else _FAULT,
                **{_schema_name(view.name): view.schema(minor) for view in api.views.values() if view.at(minor)},
            },
            "responses": {
                status: {
                    "description": description,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/fault"}}},
                }
                for status, description in _ERRORS.items()
            },
        },
    }


def _grouped_routes(api: Api, minor: int) -> Iterable[tuple[str, str, list[Route]]]:
    """The routes of this version by path and method. The actions of one path are one operation."""
    grouped: dict[tuple[str, str], list[Route]] = {}
    for route in api.routes.values():
        if route.versions[minor - api.low] is not None:
            grouped.setdefault((route.path, route.method), []).append(route)
    return ((path, method, routes) for (path, method), routes in sorted(grouped.items()))


def _add_operation(paths: dict[str, dict[str, Any]], path: str, route: Route, described: dict[str, Any]) -> None:
    at = paths.setdefault(path, {})
    names = _PARAMETER.findall(path)
    if names:
        at["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    at[route.method.lower()] = described


def _describe_document(route: Route) -> dict[str, Any]:
    return {
        "operationId": route.key,
        "summary": route.summary,
        "security": [],
        "parameters": [_query_parameter(key, schema) for key, schema in (route.query or {}).items()],
        "responses": {"200": {"description": "Success."}, "default": {"$ref": "#/components/responses/default"}},
    }


def _describe(api: Api, minor: int, method: str, routes: list[Route]) -> dict[str, Any]:
    versions = [version for route in routes if (version := route.versions[minor - api.low]) is not None]
    first = routes[0]
    described: dict[str, Any] = {
        "operationId": f"{method} {first.path}",
        "summary": first.summary if first.action is None else "Do one of: " + ", ".join(_actions(routes)),
        "tags": [first.path.split("/")[1] or api.name],
        "parameters": _parameters(api, versions[0]),
        "responses": _responses(api, routes, versions),
    }
    if any(route.dry_run for route in routes):
        described["parameters"].append(_DRY_RUN)
        described["responses"]["200"] = {"description": "The plan of a dry run."}
    rules = sorted({rule for route in routes for rule in (route.policy, *route.checks) if rule})
    if rules:
        described["x-policy"] = rules
    bodies = [version.body.schema for version in versions if version.body is not None]
    if bodies:
        schema = bodies[0] if first.action is None else {"oneOf": bodies}
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if not first.needs_token:
        described["security"] = []
    return described


def _actions(routes: list[Route]) -> list[str]:
    return [route.action for route in routes if route.action]


def _parameters(api: Api, version: RouteVersion) -> list[dict[str, Any]]:
    parameters = [_query_parameter(key, schema) for key, schema in version.query_keys.items()]
    if version.query_patterns:
        parameters.append(_pattern_parameter(version))
    return [{"$ref": "#/components/parameters/version"}, *parameters] if api.major else parameters


def _query_parameter(key: str, schema: dict[str, Any]) -> dict[str, Any]:
    schema = dict(schema)
    schema.pop("repeatable", None)
    if schema.pop("multi", False):
        schema = {"type": "array", "items": schema}
    return {"name": key, "in": "query", "schema": schema}


def _pattern_parameter(version: RouteVersion) -> dict[str, Any]:
    """Keys that match patterns, as one object whose members are separate query keys (`explode`)."""
    known = version.query.schema["patternProperties"]
    return {
        "name": "others",
        "in": "query",
        "description": "Any number of keys that match these patterns.",
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


def _responses(api: Api, routes: list[Route], versions: list[RouteVersion]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    # If one action of a status shows no view, the status does not determine the body.
    unspecified = {version.status for route, version in zip(routes, versions, strict=True) if route.shows is None}
    for route, version in zip(routes, versions, strict=True):
        shown = _response_schema(route) if version.status not in unspecified else None
        answered = responses.setdefault(str(version.status), {"description": "Success."})
        if shown:
            schemas = answered.setdefault("content", {"application/json": {"schema": {"anyOf": []}}})
            schemas["application/json"]["schema"]["anyOf"].append(shown)
        for status in route.other_statuses:
            responses.setdefault(str(status), {"description": "Success."})
    for answered in responses.values():
        content = answered.get("content", {}).get("application/json")
        if content and len(content["schema"]["anyOf"]) == 1:
            content["schema"] = content["schema"]["anyOf"][0]
    return {**responses, **{status: {"$ref": f"#/components/responses/{status}"} for status in _ERRORS}}


def _response_schema(route: Route) -> dict[str, Any] | None:
    if route.shows is None:
        return None
    key, view, many = route.shows
    schema: dict[str, Any] = {"$ref": f"#/components/schemas/{_schema_name(view)}"}
    if not key:
        return schema
    if many:
        schema = {"type": "array", "items": schema}
    return {"type": "object", "properties": {key: schema}, "required": [key]}


def _schema_name(view: str) -> str:
    return view.replace(" ", "_")
