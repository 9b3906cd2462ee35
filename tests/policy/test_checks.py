"""Policy checks: combination, text form, and decision."""

from __future__ import annotations

import pytest

from kilonova.policy.checks import Always, Check, Match, Never, PolicyError, Role, RuleReference, TargetField
from kilonova.policy.enforcer import compile_rules
from tests.policy.support import target, token


def allows(check: Check, **rules: Check) -> bool:
    compiled = compile_rules({"it": check, **rules})
    return compiled["it"](token("member"), target(visibility="public", **{"network:project_id": "p1"}))


@pytest.mark.parametrize(
    "check, text, result",
    [
        (Always(), "@", True),
        (Never(), "!", False),
        (Role("member"), "role:member", True),
        (Role("Member"), "role:Member", True),
        (Role("admin"), "role:admin", False),
        (Match("project_id"), "project_id:%(project_id)s", True),
        (Match("tenant_id", "%(project_id)s"), "tenant_id:%(project_id)s", True),
        (Match("project_id", "%(network:project_id)s"), "project_id:%(network:project_id)s", True),
        (Match("project_id", "%(absent)s"), "project_id:%(absent)s", False),
        (Match("project_id", "p1"), "project_id:p1", True),
        (Match("project_id", "p%(n)s"), "project_id:p%(n)s", False),
        (Match("domain_id", "%(domain_id)s"), "domain_id:%(domain_id)s", False),
        (Match("'public'", "%(visibility)s"), "'public':%(visibility)s", True),
        (Match("system_scope", "all"), "system_scope:all", False),
        (Match("is_admin_project", "True"), "is_admin_project:True", True),
        (TargetField("images:visibility=public"), "field:images:visibility=public", True),
        (TargetField("networks:shared=True"), "field:networks:shared=True", False),
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
def test_text_and_decision(check: Check, text: str, result: bool) -> None:
    assert str(check) == text
    assert allows(check) is result


def test_rule_reference_uses_the_rule_in_force() -> None:
    assert allows(RuleReference("other"), other=Role("member"))
    assert not allows(RuleReference("other"), other=Role("admin"))


def test_circular_and_unknown_references_are_refused() -> None:
    with pytest.raises(PolicyError, match="a -> b -> a"):
        compile_rules({"a": RuleReference("b"), "b": RuleReference("a")})
    with pytest.raises(PolicyError, match="'a' refers to the rule 'b'"):
        compile_rules({"a": RuleReference("b")})


def test_token_without_project_matches_no_project() -> None:
    compiled = compile_rules({"it": Match("project_id"), "user": Match("tenant_id")})
    for name in compiled:
        for attributes in ({}, {"project_id": None, "tenant_id": None}, {"project_id": "None", "tenant_id": "None"}):
            assert not compiled[name](token(project=None), attributes)


@pytest.mark.parametrize(
    "check",
    [Match("favourite_colour", "red"), TargetField("networks"), Match("is_admin", "maybe")],
)
def test_invalid_checks_are_refused(check: Check) -> None:
    with pytest.raises(PolicyError):
        compile_rules({"it": check, "context_is_admin": Role("admin")})
