"""Authorization of the routes, by default and with a policy file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kilonova.placement.build import build
from kilonova.policy import Policy
from kilonova.policy.placement import RULES
from tests.placement.rest.support import error, placement
from tests.support import run
from tests.support.cloud import DEMO

GUARDED = [key for key in build().routes if key not in ("GET /", "GET /usages")]
LEGACY = "rule:admin_api and not system_scope:all"


async def statuses(url: str, keys: list[str], as_: str, policy: Policy | None = None) -> dict[str, int]:
    """The statuses of requests without a body, or with an empty body."""
    async with placement(url, policy=policy) as place:
        found = {}
        for key in keys:
            method, _, path = key.partition(" ")
            path = path.format(uuid="x", name="x", resource_class="x", consumer_uuid="x") + (
                f"?project_id={DEMO}" if path == "/usages" else ""
            )
            found[key] = (await place.request(method, path, {} if method in ("PUT", "POST") else None, as_=as_)).status
        return found


@pytest.mark.parametrize("as_", ["member", "reader", "manager", "system"])
def test_other_roles_are_forbidden(sqlite_url: str, as_: str) -> None:
    assert set(run(statuses(sqlite_url, GUARDED, as_)).values()) == {403}


@pytest.mark.parametrize("as_", ["admin", "project-admin", "service"])
def test_admin_and_service_are_authorized(sqlite_url: str, as_: str) -> None:
    body = run(statuses(sqlite_url, [*GUARDED, "GET /usages"], as_))
    assert {key for key, status in body.items() if status == 403} == (set() if as_ == "service" else {"POST /reshaper"})


def policy(directory: Path, check: str) -> Policy:
    file = directory / "policy.yaml"
    file.write_text("".join(f'"{rule.name}": "{check}"\n' for rule in RULES))
    return Policy(file)


def test_deprecated_rules_of_policy_file(sqlite_url: str, tmp_path: Path) -> None:
    """With the deprecated rules only administrators are authorized."""
    rules = policy(tmp_path, LEGACY)
    keys = [*GUARDED, "GET /usages"]
    assert 403 not in run(statuses(sqlite_url, keys, "admin", rules)).values()
    for as_ in ("service", "reader", "system"):
        assert set(run(statuses(sqlite_url, keys, as_, rules)).values()) == {403}


def test_open_rules_of_policy_file(sqlite_url: str, tmp_path: Path) -> None:
    body = run(statuses(sqlite_url, [*GUARDED, "GET /usages"], "member", policy(tmp_path, "@")))
    assert 403 not in body.values()


def test_forbidden_error_names_the_rule(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with placement(sqlite_url) as place:
            body = error(await place.get("/traits", as_="member"))
            assert body["title"] == "Forbidden"
            assert "placement:traits:list" in body["detail"]

    run(scenario())


def test_every_route_has_a_policy_rule() -> None:
    named = {rule for route in build().routes.values() for rule in (route.policy, *route.checks) if rule}
    assert named == {rule.name for rule in RULES}
