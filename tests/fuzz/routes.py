"""Calls every route of an API in this process once, with a body generated from its schema and known names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from kilonova.http import Api
from kilonova.http.api import Route, RouteVersion
from kilonova.http.client import ClientResponse
from kilonova.http.errors import BadRequest
from kilonova.http.schema import Validator

# Arguments: method, path below the API's prefix, version, and body.
Call = Callable[[str, str, str | None, Any], Awaitable[ClientResponse]]
SORT_KEYS = ("created_at", "updated_at", "id", "uuid", "name", "status")
# Statuses of removed routes, and of routes that hosts and services do not support.
REMOVED = (410, 501)
# For keys without a known name: the first value that matches the schema is used.
TEXTS = (
    *("something", "1", "true", "1.5", "2020-01-01T00:00:00Z", "2020-01-01T00:00:00.000000"),
    *("33333333-3333-4333-8333-333333333333", "10.99.0.7", "10.99.0.0/24", "CUSTOM_A", "VCPU:1", "asc", "name:asc"),
    *("=something", "in:something", "c29tZXRoaW5n", "VCPU", "/dev/vdb", "application/octet-stream"),
)
# Resources are deleted last, subresources before their parents.
ORDER = ("GET", "HEAD", "PUT", "PATCH", "POST", "DELETE")


class RouteWalker:
    """`names` has values of path parameters, body keys and query keys; `bodies` has explicit bodies by route."""

    def __init__(self, api: Api, call: Call, names: Mapping[str, Any], bodies: Mapping[str, Any]) -> None:
        self.api = api
        self.call = call
        self.names = names
        self.bodies = bodies
        self.statuses: dict[str, int] = {}
        self.filters: Counter[int] = Counter()

    def routes(self) -> list[Route]:
        def place(route: Route) -> tuple[int, int]:
            return ORDER.index(route.method), -route.path.count("/") if route.method == "DELETE" else 0

        return sorted((*self.api.document_routes.values(), *self.api.routes.values()), key=place)

    async def call_route(self, route: Route) -> ClientResponse:
        """Call the route at the newest version that has it. Lists are also called with each of their filters."""
        method, path, version, body = self.request(route)
        answer = await self.call(method, path, version, body)
        self._record(route.key, answer)
        if route.method == "GET" and answer.status == 200:
            path = path.partition("?")[0]
            for query in self._queries(self.newest_version(route)[1]):
                filtered = await self.call("GET", f"{path}?{urlencode(query)}", version, None)
                assert filtered.status < 500 or filtered.status == 501, (route.key, query, filtered.body)
                self.filters[filtered.status] += 1
        return answer

    def request(self, route: Route) -> tuple[str, str, str | None, Any]:
        """Method, path with query, newest version that has the route, and body."""
        minor, route_version = self.newest_version(route)
        version = f"{self.api.major}.{minor}" if self.api.major else None
        path, body = self.path(route), self._body(route, route_version)
        if route.method == "GET" and body is not None:
            return "GET", f"{path}?{urlencode(body)}", version, None
        return route.method, path, version, body

    def path(self, route: Route) -> str:
        root = "" if route.key in self.api.document_routes or not self.api.roots else f"/{self.api.roots[0]}"

        def named(found: re.Match[str]) -> str:
            noun, name = found.groups()
            return f"{noun}/{self.names.get(f'{noun}/{name}', self.names.get(name, 'something'))}"

        return root + re.sub(r"([^/]*)/\{(\w+)\}", named, route.path)

    def refused(self, *methods: str) -> dict[str, int]:
        """The routes that were refused, except for removed ones."""
        return {
            key: status
            for key, status in self.statuses.items()
            if status >= 400 and status not in REMOVED and key.split(" ")[0] in methods
        }

    def newest_version(self, route: Route) -> tuple[int, RouteVersion]:
        found = [
            (place, route_version) for place, route_version in enumerate(route.versions) if route_version is not None
        ]
        place, route_version = found[-1]
        return self.api.low + place, route_version

    def _record(self, key: str, answer: ClientResponse) -> None:
        assert answer.status < 500 or answer.status == 501, (key, answer.body)
        self.statuses[key] = answer.status

    def _body(self, route: Route, route_version: RouteVersion) -> Any:
        if route.key in self.bodies:
            return self.bodies[route.key]
        return self.sample(route_version.body.schema, "") if route_version.body is not None else None

    def _queries(self, route_version: RouteVersion) -> Iterator[dict[str, str]]:
        for key in route_version.query_keys:
            if key == "sort_key":
                for name in SORT_KEYS:
                    yield {key: name, **({"sort_dir": "desc"} if "sort_dir" in route_version.query_keys else {})}
            else:
                yield {key: str(self._text(key, {"type": "string", **route_version.query_keys[key]}))}

    def sample(self, schema: Mapping[str, Any], key: str) -> Any:
        """A small value that matches the schema, with values of `names` where possible."""
        if key in self.names and _allows(schema, self.names[key]):
            return self.names[key]
        if "enum" in schema:
            return schema["enum"][0]
        for choice in ("anyOf", "oneOf"):
            if choice in schema and "properties" not in schema:
                return self.sample({**schema[choice][0]}, key)
        types = schema.get("type", "object" if "properties" in schema else "string")
        type_ = types if isinstance(types, str) else types[0]
        if type_ == "object":
            return self._object(schema)
        if type_ == "array":
            return [self.sample(schema.get("items", {}), key)] * schema.get("minItems", 1)
        if type_ in ("integer", "number"):
            return max(schema.get("minimum", 1), 1)
        return {"boolean": True, "null": None}[type_] if type_ != "string" else self._text(key, schema)

    def _object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        known = schema.get("properties", {})
        keys = {*schema.get("required", ()), *(self.names.keys() & known.keys())}
        for choice in ("anyOf", "oneOf"):
            keys.update(*(each.get("required", ()) for each in schema.get(choice, ())[:1]))
        if not keys and known:
            keys = {next(iter(known))}
        return {key: self.sample(each, key) for key, each in known.items() if key in keys}

    def _text(self, key: str, schema: Mapping[str, Any]) -> Any:
        values = (*([self.names[key]] if key in self.names else ()), *schema.get("enum", TEXTS))
        return next((value for value in values if _allows(schema, value)), "something")


def _allows(schema: Mapping[str, Any], value: Any) -> bool:
    try:
        Validator({name: rule for name, rule in schema.items() if name != "multi"}).check(value)
    except BadRequest:
        return False
    return True
