"""Events of requests in the audit log. `tests/fuzz/test_every_route.py` checks the events of every write."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kilonova.config import Api as Settings
from kilonova.http.audit import describe
from kilonova.http.client import InProcess
from kilonova.http.rate_limits import RateLimits
from kilonova.telemetry.audit import AuditLog
from tests.http.toy import PROJECT, Toy, toy
from tests.identity.support import cloud, password_auth, project_scope, token_auth
from tests.support import run
from tests.support.audit import CLIENT_ADDRESS, from_client, recorded_events

GLOBAL_ID = "req-11111111-1111-4111-8111-111111111111"


def remote_toy() -> Toy:
    made = toy()
    made.caller = InProcess(from_client(made.app))
    return made


def test_event_of_a_change() -> None:
    client = remote_toy()
    with recorded_events(client.services) as events:
        answer = client.request("PUT", "/toy/v2.1/toys/7", X_OpenStack_Request_ID=GLOBAL_ID)
    (event,) = events
    assert event.pop("eventTime").endswith("Z")
    assert event["observer"].pop("host")
    assert event == {
        "action": "update",
        "outcome": "success",
        "initiator": {
            "address": CLIENT_ADDRESS,
            "id": "member-id",
            "name": "member",
            "domain_id": "default",
            "project_id": PROJECT,
            "roles": ["member", "reader"],
        },
        "target": {"type": "toy/toys", "id": "7", "project_id": PROJECT},
        "observer": {"type": "service/toy"},
        "reason": {"code": 204},
        "request_id": answer.headers["x-openstack-request-id"],
        "global_request_id": GLOBAL_ID,
    }


REFUSED: list[tuple[str, str, str | None, str, tuple[Any, ...]]] = [
    # method, path, token; action, and type, id, code and text of the event
    ("PUT", "/toys/7", None, "update", ("toy/toys", "7", 401, "no token")),
    ("PUT", "/toys/7", "nobody", "update", ("toy/toys", "7", 401, "the token is not valid")),
    ("GET", "/toys/7", None, "read", ("toy/toys", "7", 401, "no token")),
    ("POST", "/toys/7/action", None, "update", ("toy/toys", "7", 401, "no token")),
    ("DELETE", "/toys/7", "member", "delete", ("toy/toys", "7", 403, "policy never")),
    ("PATCH", "/toys/7", "member", "update", ("toy/toys", "7", 405, None)),
    ("POST", "/nothing", "member", "create", ("toy", None, 404, None)),
    ("POST", "/nothing", None, "create", ("toy", None, 401, "no token")),
    ("POST", "/toys", "member", "create", ("toy/toys", None, 400, None)),
    ("PUT", "/broken", "member", "update", ("toy/broken", None, 405, None)),
]


@pytest.mark.parametrize("method, path, token, action, expected", REFUSED, ids=lambda value: str(value)[:30])
def test_refused_attempts_are_recorded(
    method: str, path: str, token: str | None, action: str, expected: tuple[Any, ...]
) -> None:
    client = remote_toy()
    with recorded_events(client.services) as events:
        client.request(method, f"/toy/v2.1{path}", as_=token)
    (event,) = events
    target, reason = event["target"], event["reason"]
    assert (event["action"], event["outcome"]) == (action, "failure")
    assert (target["type"], target.get("id"), reason["code"], reason.get("text")) == expected


def test_refusals_by_rate_limits_are_recorded() -> None:
    client = remote_toy()
    client.services.rate_limits = RateLimits(Settings(requests_per_second_per_address=0.1))
    with recorded_events(client.services) as events:
        assert [client.get("/toy/v2.1/toys").status for _ in range(2)] == [200, 429]
    assert [(event["action"], event["reason"]["code"]) for event in events] == [("read", 429)]


def test_reads_are_recorded_only_by_request() -> None:
    client = remote_toy()
    for reads, count in ((False, 0), (True, 4)):
        with recorded_events(client.services, reads=reads) as events:
            for path in ("/toys", "/toys/7", "/nothing", "/open"):
                client.get(f"/toy/v2.1{path}")
            client.get("/elsewhere")
        assert len(events) == count
        assert {event["action"] for event in events} <= {"read"}


def test_requests_between_services_are_not_recorded() -> None:
    client = toy()
    with recorded_events(client.services) as events:
        client.request("PUT", "/toy/v2.1/toys/7")
    assert events == []


@pytest.mark.parametrize("value", ["0", "1", "maybe"])
def test_dry_run_header_hides_no_change(value: str) -> None:
    client = remote_toy()
    with recorded_events(client.services) as events:
        client.request("PUT", "/toy/v2.1/toys/7", X_Kilonova_Dry_Run=value)
    assert [event["action"] for event in events] == ["update"]


def test_text_of_clients_is_escaped_and_limited() -> None:
    client = remote_toy()
    with recorded_events(client.services) as events:
        client.request("PUT", "/toy/v2.1/toys/a%0a%7b%22action%22")
        client.request("PUT", "/toy/v2.1/toys/" + "x" * 5000)
    assert [event["target"]["id"] for event in events] == ['a\n{"action"', "x" * 255]


def test_requests_go_on_if_the_disk_is_full() -> None:
    client = remote_toy()
    client.services.audit = AuditLog("/dev/full")
    try:
        assert client.request("PUT", "/toy/v2.1/toys/7").status == 204
    finally:
        client.services.audit.close()


@pytest.mark.parametrize(
    "method, path, action, kind",
    [
        ("POST", "/servers/{server_id}/metadata", "create", "compute/servers/metadata"),
        ("DELETE", "/servers/{server_id}/tags/{tag}", "delete", "compute/servers/tags"),
        ("GET", "/os-console-auth-tokens/{token}", "read", "compute/os-console-auth-tokens"),
    ],
)
def test_routes_become_actions_and_types(method: str, path: str, action: str, kind: str) -> None:
    described = describe("compute", method, path, None)
    assert (described.action, described.type) == (action, kind)
    assert "token" not in (described.id_parameter, *described.parents)


def test_logins_are_recorded_with_the_reason(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            c.caller = InProcess(from_client(c.app), "/identity")
            admin = await c.login("admin")
            demo_id = await c.ident("user", "demo")
            with recorded_events(c.services) as events:
                await c.authenticate(password_auth("demo", "secret-guess"))
                await c.authenticate(password_auth("nobody" * 60, "secret-guess"))
                await c.authenticate(password_auth("demo", scope=project_scope("admin")))
                await c.authenticate(password_auth("demo", scope=project_scope("none")))
                await c.authenticate(token_auth("secret-token"))
                await c.authenticate({"auth": {}})
                assert {event["action"] for event in events} == {"authenticate"}
                assert {event["outcome"] for event in events} == {"failure"}
                seen = [(event["initiator"].get("name"), event["reason"].get("text")) for event in events]
                role = "the user is disabled, has no role in the scope, or has just changed the password"
                assert seen == [
                    ("demo", "wrong password"),
                    (("nobody" * 60)[:255], "unknown user"),
                    ("demo", role),
                    ("demo", "unknown scope"),
                    (None, "the token is not valid"),
                    (None, None),
                ]
                assert events[0]["initiator"]["id"] == demo_id
                events.clear()
                token = await c.login("demo")
                (event,) = events
                assert event["initiator"]["id"] == demo_id
                assert event["initiator"]["roles"] == ["member", "reader"]
                audit_id = event["initiator"]["audit_id"]
                events.clear()
                await c.call("DELETE", "/v3/auth/tokens", admin, X_Subject_Token=token)
                assert events[0]["target"]["id"] == audit_id
                text = str(events)
            assert not any(secret in text for secret in ("secret-", token, admin))

    run(scenario())


def test_ec2_credentials_are_recorded_by_access_key(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            c.caller = InProcess(from_client(c.app), "/identity")
            admin, demo_id = await c.login("admin"), await c.ident("user", "demo")
            with recorded_events(c.services) as events:
                path, body = f"/v3/users/{demo_id}/credentials/OS-EC2", {"tenant_id": await c.ident("project", "demo")}
                keys = (await c.ok("POST", path, admin, body))["credential"]
                for access in (keys["access"], "unknown"):
                    signed = {"access": access, "signature": "secret-guess", "token": "QQ=="}
                    assert (await c.call("POST", "/v3/s3tokens", admin, {"credentials": signed})).status == 401
                await c.ok("DELETE", f"{path}/{keys['access']}", admin)
                made, guessed, unknown, deleted = events
                assert made["target"]["id"] == deleted["target"]["id"] == keys["access"]
                assert made["target"]["user_id"] == deleted["target"]["user_id"] == demo_id
                assert guessed["reason"]["text"] == f"wrong signature with the access key {keys['access']}"
                assert unknown["reason"]["text"] == "unknown access key unknown"
                assert not any(secret in str(events) for secret in ("secret-", keys["secret"], admin))

    run(scenario())


def test_parallel_requests_write_whole_lines(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            c.caller = InProcess(from_client(c.app), "/identity")
            with recorded_events(c.services) as events:
                await asyncio.gather(*(c.authenticate(password_auth(f"user {n}")) for n in range(20)))
            assert sorted(event["initiator"]["name"] for event in events) == sorted(f"user {n}" for n in range(20))

    run(scenario())
