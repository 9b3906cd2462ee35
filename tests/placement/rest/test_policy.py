"""Who may call what: by default, and with a policy file."""

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
    """What a caller is told who gives no body, or one that says nothing."""
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
def test_others_may_do_nothing(sqlite_url: str, as_: str) -> None:
    assert set(run(statuses(sqlite_url, GUARDED, as_)).values()) == {403}


@pytest.mark.parametrize("as_", ["admin", "project-admin", "service"])
def test_administrators_and_services_may_do_everything(sqlite_url: str, as_: str) -> None:
    told = run(statuses(sqlite_url, [*GUARDED, "GET /usages"], as_))
    assert {key for key, status in told.items() if status == 403} == (set() if as_ == "service" else {"POST /reshaper"})


def policy(directory: Path, check: str) -> Policy:
    file = directory / "policy.yaml"
    file.write_text("".join(f'"{rule.name}": "{check}"\n' for rule in RULES))
    return Policy(file)


def test_the_deprecated_rules(sqlite_url: str, tmp_path: Path) -> None:
    """Administrators may do everything, and nobody else anything."""
    rules = policy(tmp_path, LEGACY)
    everything = [*GUARDED, "GET /usages"]
    assert 403 not in run(statuses(sqlite_url, everything, "admin", rules)).values()
    for as_ in ("service", "reader", "system"):
        assert set(run(statuses(sqlite_url, everything, as_, rules)).values()) == {403}


def test_open_rules(sqlite_url: str, tmp_path: Path) -> None:
    told = run(statuses(sqlite_url, [*GUARDED, "GET /usages"], "member", policy(tmp_path, "@")))
    assert 403 not in told.values()


def test_the_refusal_names_the_rule(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with placement(sqlite_url) as place:
            told = error(await place.get("/traits", as_="member"))
            assert told["title"] == "Forbidden"
            assert "placement:traits:list" in told["detail"]

    run(scenario())


def test_every_route_has_a_rule() -> None:
    named = {rule for route in build().routes.values() for rule in (route.policy, *route.checks) if rule}
    assert named == {rule.name for rule in RULES}
