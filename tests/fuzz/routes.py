"""A walk over every route of an API inside the process: calls each once, as validly as its schema and names tell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from kilonova.http import Api
from kilonova.http.api import Form, Route
from kilonova.http.client import Response
from kilonova.http.errors import BadRequest
from kilonova.http.schema import Validator

# Who calls: method, path below the API's prefix, version, and the body.
Call = Callable[[str, str, str | None, Any], Awaitable[Response]]
SORT_KEYS = ("created_at", "updated_at", "id", "uuid", "name", "status")
# The answers of routes that no longer do anything, or that hosts and services do not support.
REMOVED = (410, 501)
# The first that fits the schema of a key without a name of its own.
TEXTS = (
    *("something", "1", "true", "1.5", "2020-01-01T00:00:00Z", "2020-01-01T00:00:00.000000"),
    *("33333333-3333-4333-8333-333333333333", "10.99.0.7", "10.99.0.0/24", "CUSTOM_A", "VCPU:1", "asc", "name:asc"),
    *("=something", "in:something", "c29tZXRoaW5n", "VCPU", "/dev/vdb", "application/octet-stream"),
)
# Resources stay until the routes that change them have been called, and what is below them is deleted first.
ORDER = ("GET", "HEAD", "PUT", "PATCH", "POST", "DELETE")


class Walk:
    """`names` gives the value of a path's parameter, a body's key or a query's key; `bodies` what no schema tells."""

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

        return sorted((*self.api.pages.values(), *self.api.routes.values()), key=place)

    async def go(self, route: Route) -> Response:
        """One call, in the newest version that has the route. A list is asked for by each of its filters, too."""
        minor, form = self._newest(route)
        version = f"{self.api.major}.{minor}" if self.api.major else None
        path = self.path(route)
        body = self._body(route, form)
        if route.method == "GET" and body is not None:
            answer = await self.call("GET", f"{path}?{urlencode(body)}", version, None)
        else:
            answer = await self.call(route.method, path, version, body)
        self._keep(route.key, answer)
        if route.method == "GET" and answer.status == 200:
            for query in self._queries(form):
                filtered = await self.call("GET", f"{path}?{urlencode(query)}", version, None)
                assert filtered.status < 500 or filtered.status == 501, (route.key, query, filtered.body)
                self.filters[filtered.status] += 1
        return answer

    def path(self, route: Route) -> str:
        root = "" if route.key in self.api.pages or not self.api.roots else f"/{self.api.roots[0]}"

        def named(found: re.Match[str]) -> str:
            noun, name = found.groups()
            return f"{noun}/{self.names.get(f'{noun}/{name}', self.names.get(name, 'something'))}"

        return root + re.sub(r"([^/]*)/\{(\w+)\}", named, route.path)

    def refused(self, *methods: str) -> dict[str, int]:
        """Which routes that there are did not answer with success."""
        return {
            key: status
            for key, status in self.statuses.items()
            if status >= 400 and status not in REMOVED and key.split(" ")[0] in methods
        }

    def _newest(self, route: Route) -> tuple[int, Form]:
        found = [(place, form) for place, form in enumerate(route.table) if form is not None]
        place, form = found[-1]
        return self.api.low + place, form

    def _keep(self, key: str, answer: Response) -> None:
        assert answer.status < 500 or answer.status == 501, (key, answer.body)
        self.statuses[key] = answer.status

    def _body(self, route: Route, form: Form) -> Any:
        if route.key in self.bodies:
            return self.bodies[route.key]
        return self.sample(form.body.schema, "") if form.body is not None else None

    def _queries(self, form: Form) -> Iterator[dict[str, str]]:
        for key in form.query_keys:
            if key == "sort_key":
                for name in SORT_KEYS:
                    yield {key: name, **({"sort_dir": "desc"} if "sort_dir" in form.query_keys else {})}
            else:
                yield {key: str(self._text(key, {"type": "string", **form.query_keys[key]}))}

    def sample(self, schema: Mapping[str, Any], key: str) -> Any:
        """A value that the schema allows, small but with whatever has a name."""
        if key in self.names and _allows(schema, self.names[key]):
            return self.names[key]
        if "enum" in schema:
            return schema["enum"][0]
        for choice in ("anyOf", "oneOf"):
            if choice in schema and "properties" not in schema:
                return self.sample({**schema[choice][0]}, key)
        kinds = schema.get("type", "object" if "properties" in schema else "string")
        kind = kinds if isinstance(kinds, str) else kinds[0]
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            return [self.sample(schema.get("items", {}), key)] * schema.get("minItems", 1)
        if kind in ("integer", "number"):
            return max(schema.get("minimum", 1), 1)
        return {"boolean": True, "null": None}[kind] if kind != "string" else self._text(key, schema)

    def _object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        known = schema.get("properties", {})
        wanted = {*schema.get("required", ()), *(self.names.keys() & known.keys())}
        for choice in ("anyOf", "oneOf"):
            wanted.update(*(each.get("required", ()) for each in schema.get(choice, ())[:1]))
        if not wanted and known:
            wanted = {next(iter(known))}
        return {key: self.sample(each, key) for key, each in known.items() if key in wanted}

    def _text(self, key: str, schema: Mapping[str, Any]) -> Any:
        values = (*([self.names[key]] if key in self.names else ()), *schema.get("enum", TEXTS))
        return next((value for value in values if _allows(schema, value)), "something")


def _allows(schema: Mapping[str, Any], value: Any) -> bool:
    try:
        Validator({name: rule for name, rule in schema.items() if name != "multi"}).check(value)
    except BadRequest:
        return False
    return True
