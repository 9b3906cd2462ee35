"""Checks: how they combine, print and decide."""

from __future__ import annotations

import pytest

from kilonova.policy.checks import Always, Check, Field, Named, Never, PolicyError, Role, Same
from kilonova.policy.enforcer import compile_rules
from tests.policy.support import target, token


def decide(check: Check, **rules: Check) -> bool:
    closures = compile_rules({"it": check, **rules})
    return closures["it"](token("member"), target(visibility="public", **{"network:project_id": "p1"}))


@pytest.mark.parametrize(
    "check, text, result",
    [
        (Always(), "@", True),
        (Never(), "!", False),
        (Role("member"), "role:member", True),
        (Role("Member"), "role:Member", True),
        (Role("admin"), "role:admin", False),
        (Same("project_id"), "project_id:%(project_id)s", True),
        (Same("tenant_id", "%(project_id)s"), "tenant_id:%(project_id)s", True),
        (Same("project_id", "%(network:project_id)s"), "project_id:%(network:project_id)s", True),
        (Same("project_id", "%(absent)s"), "project_id:%(absent)s", False),
        (Same("project_id", "p1"), "project_id:p1", True),
        (Same("project_id", "p%(n)s"), "project_id:p%(n)s", False),
        (Same("domain_id", "%(domain_id)s"), "domain_id:%(domain_id)s", False),
        (Same("'public'", "%(visibility)s"), "'public':%(visibility)s", True),
        (Same("system_scope", "all"), "system_scope:all", False),
        (Same("is_admin_project", "True"), "is_admin_project:True", True),
        (Field("images:visibility=public"), "field:images:visibility=public", True),
        (Field("networks:shared=True"), "field:networks:shared=True", False),
        (~Role("admin"), "not role:admin", True),
        (Role("admin") | Role("member"), "role:admin or role:member", True),
        (Role("admin") & Role("member"), "role:admin and role:member", False),
        (Role("a") | Role("b") | Role("member"), "role:a or role:b or role:member", True),
        (Role("reader") & Role("member") & Role("x"), "role:reader and role:member and role:x", False),
        (Role("a") & (Role("b") | Role("c")), "role:a and (role:b or role:c)", False),
        (Role("a") & Role("b") | Role("member"), "(role:a and role:b) or role:member", True),
        (~(Role("a") | Role("b")), "not (role:a or role:b)", True),
        (~~Role("member"), "not (not role:member)", True),
    ],
)
def test_print_and_decide(check: Check, text: str, result: bool) -> None:
    assert str(check) == text
    assert decide(check) is result


def test_named_rules_are_those_in_force() -> None:
    assert decide(Named("other"), other=Role("member"))
    assert not decide(Named("other"), other=Role("admin"))


def test_circles_and_holes_are_named() -> None:
    with pytest.raises(PolicyError, match="a -> b -> a"):
        compile_rules({"a": Named("b"), "b": Named("a")})
    with pytest.raises(PolicyError, match="'a' refers to the rule 'b'"):
        compile_rules({"a": Named("b")})


def test_a_token_without_a_project_matches_no_project() -> None:
    closures = compile_rules({"it": Same("project_id"), "user": Same("tenant_id")})
    for name in closures:
        for aim in ({}, {"project_id": None, "tenant_id": None}, {"project_id": "None", "tenant_id": "None"}):
            assert not closures[name](token(project=None), aim)


@pytest.mark.parametrize("check", [Same("favourite_colour", "red"), Field("networks"), Same("is_admin", "maybe")])
def test_what_cannot_be_checked_is_an_error(check: Check) -> None:
    with pytest.raises(PolicyError):
        compile_rules({"it": check, "context_is_admin": Role("admin")})
