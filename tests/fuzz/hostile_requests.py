"""Requests that try to keep a cloud process busy: odd queries, bodies, headers and patterns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

from tests.fuzz.raw import chunked, request

KIB = 1024
LISTS = (
    *("/compute/v2.1/servers/detail", "/compute/v2.1/flavors/detail", "/compute/v2.1/os-keypairs"),
    *("/volume/v3/volumes/detail", "/volume/v3/snapshots", "/volume/v3/types", "/image/v2/images"),
    *("/network/v2.0/networks", "/network/v2.0/ports", "/network/v2.0/security-groups", "/identity/v3/auth/projects"),
    *("/identity/v3/credentials", "/identity/v3/limits", "/identity/v3/regions"),
    "/share/v2/shares/detail",
)
CREATES = {
    "/compute/v2.1/servers": 112 * KIB,
    "/compute/v2.1/os-keypairs": 112 * KIB,
    "/identity/v3/auth/tokens": 112 * KIB,
    "/identity/v3/credentials": 112 * KIB,
    "/image/v2/images": KIB * KIB,
    "/network/v2.0/networks": KIB * KIB,
    "/network/v2.0/ports": KIB * KIB,
    "/volume/v3/volumes": 112 * KIB,
    "/share/v2/shares": 112 * KIB,
}
PATTERNS = (
    "(.?){2000}x",
    "(.?){30}x",
    "((((a*)*)*)*)*b",
    "(a|aa)+$" * 20,
    "(" * 255,
    "[" * 255,
    "^(.*)*$|" * 30,
    "x" * 60000,
)
PATTERN_FILTERS = ("servers?name", "servers?ip", "servers?availability_zone", "flavors?name")


class Attack(NamedTuple):
    name: str
    data: bytes


def queries() -> Iterator[tuple[str, str]]:
    for key in PATTERN_FILTERS:
        for pattern in PATTERNS:
            yield f"{key}={pattern[:20]}", f"/compute/v2.1/{key}={quote(pattern)}"
    long = ",".join(["a"] * 15000)
    for path in LISTS:
        for key in (
            "tags",
            "not-tags-any",
            "name",
            "id",
            "status",
            "created_at",
            "sort",
            "sort_key",
            "fields",
            "metadata",
        ):
            yield f"{path}?{key}=a,a…", f"{path}?{key}={long}"
            yield f"{path}?{key}=…&{key}=…", f"{path}?" + "&".join([f"{key}=name"] * 999)
        yield f"{path}?limit", f"{path}?limit={'9' * 60000}"
        yield f"{path}?many", f"{path}?" + "&".join(f"key{number}=x" for number in range(999))
        yield f"{path}?percent", f"{path}?name={'%C3%A9' * 10000}"
        yield f"{path}?invalid", f"{path}?name={'%ED%A0%80' * 6000}"
        yield f"{path}/…", f"{path}/" + "%2F" * 20000
        yield f"{path}/a/a", f"{path}" + "/a" * 30000
    for text in ("{" + "'a':" * 15000, "{" + "".join(f"'k{number}':'v'," for number in range(4000)) + "}", "[" * 60000):
        yield "dictionary", f"/volume/v3/volumes?metadata={text}"


def bodies(size: int) -> Iterator[tuple[str, bytes]]:
    half = size // 2 - 100
    yield "deep lists", b"[" * half + b"]" * half
    yield "deep objects", b'{"a":' * (size // 6 - 100) + b"1" + b"}" * (size // 6 - 100)
    yield "numbers", b'{"a": [' + b"1," * half + b"1]}"
    yield "empty objects", b"[" + b"{}," * (size // 3 - 100) + b"{}]"
    yield "keys", b"{" + b",".join(b'"%d":1' % number for number in range(size // 12)) + b"}"
    yield "long number", b'{"a": ' + b"9" * (size - 100) + b"}"
    yield "long string", b'{"a": "' + b"a" * (size - 100) + b'"}'
    yield "escapes", b'{"a": "' + b"\\u0041" * (size // 6 - 100) + b'"}'
    yield "spaces", b" " * (size - 100) + b"{}"
    yield "quotes", b'{"a": "' + b'\\"' * half + b'"}'


def attacks(token: str) -> Iterator[Attack]:
    auth = f"X-Auth-Token: {token}"
    for name, target in queries():
        yield Attack(name, request("GET", target[: 64 * KIB - 500], auth, "OpenStack-API-Version: compute 2.96"))
    kind = "Content-Type: application/json"
    for path, size in CREATES.items():
        for name, body in bodies(size):
            yield Attack(f"{path} {name}", request("POST", path, auth, kind, body=body))
        tiny = chunked([b"{"] * 2000) + b"0\r\n\r\n"
        yield Attack(f"{path} chunks", request("POST", path, auth, kind, "Transfer-Encoding: chunked") + tiny)
    yield Attack("headers", request("GET", "/compute/v2.1/servers", auth, *["X-A: b"] * 4000))
    yield Attack("accept", request("GET", "/placement/resource_providers", auth, "Accept: " + "a/b;q=1," * 7000))
    yield Attack("versions", request("GET", "/compute/v2.1/servers", auth, "OpenStack-API-Version: " + "," * 60000))
    for wrong in ("a" * 60000, "gAAAAA" + "B" * 1000):
        yield Attack("token", request("GET", "/compute/v2.1/servers", f"X-Auth-Token: {wrong}"))
    user = {"name": "x" * 4096, "domain": {"name": "y" * 4096}, "password": "z" * 4096}
    login = {"auth": {"identity": {"methods": ["password"], "password": {"user": user}}}}
    yield Attack("login", request("POST", "/identity/v3/auth/tokens", kind, body=json.dumps(login).encode()))
