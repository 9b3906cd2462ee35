"""Policy enforcement: default rules by persona, an operator's policy file, and the sample file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import yaml
from msgspec import structs

from kilonova.policy import Policy, PolicyError, compute, sample_policy
from kilonova.policy.enforcer import DEFAULTS, SERVICES
from kilonova.policy.overrides import parse_overrides
from tests.policy.support import target, token

OTHERS = target("p2", "u2")
PERSONAS = {
    "admin": token("admin"),
    "manager": token("manager"),
    "member": token("member"),
    "reader": token("reader"),
    "service": token("service"),
    "none": token("none"),
    "system admin": token("admin", project=None, system=True),
    "system reader": token("reader", project=None, system=True),
}


def allowed(policy: Policy, rule: str, target_: dict[str, object]) -> set[str]:
    return {name for name, expected in PERSONAS.items() if policy.allows(rule, expected, target_)}


ADMINS = {"admin", "system admin"}
OWN = [
    ("os_compute_api:servers:index", ADMINS | {"manager", "member", "reader"}),
    ("os_compute_api:servers:create", ADMINS | {"manager", "member"}),
    ("os_compute_api:servers:create:forced_host", ADMINS),
    ("os_compute_api:servers:create:requested_destination", ADMINS | {"manager"}),
    ("compute:servers:create:requested_destination", ADMINS),
    ("os_compute_api:servers:detail:get_all_tenants", ADMINS),
    ("os_compute_api:os-shelve:unshelve", ADMINS | {"manager", "member"}),
    ("os_compute_api:os-shelve:unshelve_to_host", ADMINS),
    ("os_compute_api:os-migrate-server:migrate_live", ADMINS | {"manager"}),
    ("os_compute_api:os-extended-server-attributes", ADMINS),
    ("os_compute_api:os-hypervisors:list", ADMINS | {"system reader"}),
    ("os_compute_api:os-hypervisors:list-all", {"system admin", "system reader"}),
    ("os_compute_api:os-hypervisors:list-assigned", {"admin", "manager"}),
    ("os_compute_api:os-keypairs:create", set(PERSONAS)),
    ("os_compute_api:os-server-external-events:create", ADMINS | {"service"}),
    ("os_compute_api:os-volumes-attachments:swap", ADMINS | {"service"}),
    ("os_compute_api:limits", set(PERSONAS)),
    ("compute:servers:resize:cross_cell", set()),
    ("kilonova:servers:placement", ADMINS | {"manager", "member", "reader"}),
    ("kilonova:servers:placement:own_hosts", {"admin", "manager"}),
    ("kilonova:servers:placement:all_hosts", {"system admin"}),
    ("kilonova:fit", {"system admin"}),
    ("placement:reshaper:reshape", {"service"}),
    ("placement:usages", {"admin", "manager", "member", "reader", "service"}),
    ("get_images", ADMINS | {"manager", "member", "reader"}),
    ("publicize_image", ADMINS),
    ("create_port", ADMINS | {"manager", "member", "service"}),
    ("create_port:binding:host_id", ADMINS | {"service"}),
    ("identity:list_users", ADMINS | {"system reader"}),
    ("identity:create_user", ADMINS),
]
FOREIGN = [
    ("os_compute_api:servers:show", ADMINS),
    ("os_compute_api:os-migrate-server:migrate_live", ADMINS),
    ("os_compute_api:os-keypairs:show", ADMINS),
    ("os_compute_api:os-hypervisors:list-assigned", set()),
    ("kilonova:servers:placement:own_hosts", set()),
    ("kilonova:servers:placement:all_hosts", ADMINS),
    ("placement:usages", {"admin", "service"}),
    ("delete_image", ADMINS),
    ("delete_port", ADMINS | {"service"}),
]


@pytest.mark.parametrize("rule, expected", OWN)
def test_default_rules_on_own_project(rule: str, expected: set[str]) -> None:
    assert allowed(Policy(), rule, target()) == expected


@pytest.mark.parametrize("rule, expected", FOREIGN)
def test_default_rules_on_other_project(rule: str, expected: set[str]) -> None:
    assert allowed(Policy(), rule, OTHERS) == expected


def test_administrators_of_project_admin_are_cloud_administrators() -> None:
    policy = Policy()
    rule = "kilonova:servers:placement:all_hosts"
    assert policy.allows(rule, token("admin", project_name="admin"), target())
    assert not policy.allows(rule, token("admin", project_name="demo"), target())
    assert not policy.allows(rule, token("member", project_name="admin"), target())
    of_service = structs.replace(token("admin"), roles=frozenset({"admin", "service"}))
    assert policy.allows(rule, of_service, target())
    assert not policy.allows(rule, token("service"), target())
    elsewhere = structs.replace(token("admin", project_name="admin"), project_domain_id="d2")
    assert not policy.allows(rule, elsewhere, target()), "another domain may have a project named admin"


def test_shared_resources_are_readable_by_all_projects() -> None:
    policy = Policy()
    everyone = set(PERSONAS)
    assert allowed(policy, "get_network", {**OTHERS, "shared": True}) == everyone
    assert allowed(policy, "get_network", {**OTHERS, "router:external": True}) == everyone
    assert allowed(policy, "get_network", {**OTHERS, "shared": False}) == ADMINS | {"service"}
    assert allowed(policy, "get_image", {**OTHERS, "visibility": "public"}) == everyone - {"service", "none"}
    assert allowed(policy, "get_image", {**OTHERS, "visibility": "private"}) == ADMINS


def test_rules_are_unique_and_described() -> None:
    names = [rule.name for rules in SERVICES.values() for rule in rules]
    assert len(names) == len(set(names)) == len(DEFAULTS)
    for rule in DEFAULTS.values():
        assert rule.description.endswith("."), rule.name
        assert "\n" not in rule.description
    assert len(compute.RULES) > 200


def test_rule_without_default_raises_key_error() -> None:
    policy = Policy()
    policy.check(["os_compute_api:servers:create", "get_images"])
    with pytest.raises(KeyError, match="os_compute_api:servers:creat, x"):
        policy.check(["x", "os_compute_api:servers:creat", "get_images"])
    with pytest.raises(KeyError):
        policy.allows("x", token(), target())


# Policy files


def _policy(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return Policy(path)


def test_overrides_apply_to_references(tmp_path: Path) -> None:
    policy = _policy(
        tmp_path,
        """
        "context_is_admin": "role:admin and project_id:p1"
        "ops": "role:manager or rule:context_is_admin"
        "os_compute_api:os-aggregates:create": "rule:ops"
        "os_compute_api:servers:create": "rule:admin_or_owner and not role:service"
        "os_compute_api:servers:delete": "!"
        "os_compute_api:os-evacuate": ""
        "os_compute_api:os-services:list": "is_admin:True or (role:reader and user_id:%(user_id)s)"
        """,
    )
    assert allowed(policy, "os_compute_api:os-aggregates:create", target()) == ADMINS | {"manager"}
    # The override of context_is_admin applies to all default rules with ADMIN.
    assert allowed(policy, "os_compute_api:os-hosts:list", OTHERS) == {"admin"}
    assert allowed(policy, "os_compute_api:servers:create", target()) == {
        "admin",
        "manager",
        "member",
        "reader",
        "none",
    }
    assert allowed(policy, "os_compute_api:servers:delete", target()) == set()
    assert allowed(policy, "os_compute_api:os-evacuate", OTHERS) == set(PERSONAS)
    assert allowed(policy, "os_compute_api:os-services:list", OTHERS) == {"admin"}
    assert allowed(policy, "os_compute_api:servers:show", target()) == {"admin", "manager", "member", "reader"}


@pytest.mark.parametrize("name", ["admin_or_owner", "context_is_admin", "admin_api", "admin_required", "admin_only"])
def test_deprecated_rule_names(tmp_path: Path, name: str) -> None:
    policy = _policy(tmp_path, f'"os_compute_api:servers:show": "rule:{name}"')
    assert allowed(policy, "os_compute_api:servers:show", OTHERS) == ADMINS
    assert "admin" in allowed(policy, "os_compute_api:servers:show", target())


@pytest.mark.parametrize(
    "text, expected",
    [
        ('"get_images": "http://opa/check"', "calls another server"),
        ('"get_images": "https://opa/check or role:admin"', "calls another server"),
        ('"get_images": "role:admin or"', "is invalid"),
        ('"get_images": "role:admin or nonsense"', "is invalid"),
        ('"get_images": "(role:admin"', "is invalid"),
        ('"get_images": "rule:nothing"', "'get_images' refers to the rule 'nothing'"),
        ('"a": "rule:b"\n"b": "rule:a"', "in a circle"),
        ('"get_images": "colour:red"', "no credential 'colour'"),
        ('"get_images": 5', "must be a string"),
        ("[1, 2]", "mapping"),
        ('"get_images": "role:admin', ""),
    ],
)
def test_invalid_policy_file_is_refused_with_reason(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(PolicyError) as error:
        _policy(tmp_path, text)
    assert expected in str(error.value)


def test_missing_policy_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read"):
        Policy(tmp_path / "none.yaml")


def test_reload_applies_valid_file_or_keeps_old_rules(tmp_path: Path) -> None:
    policy = _policy(tmp_path, '"get_images": "!"')
    assert allowed(policy, "get_images", target()) == set()
    (tmp_path / "policy.yaml").write_text('"get_images": "role:service"')
    policy.reload()
    assert allowed(policy, "get_images", target()) == {"service"}
    for invalid in ('"get_images": "role:"x', '"get_images": "rule:none"'):
        (tmp_path / "policy.yaml").write_text(invalid)
        with pytest.raises(PolicyError):
            policy.reload()
        assert allowed(policy, "get_images", target()) == {"service"}


def test_unknown_rule_names_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = '"os_compute_api:servers:creat": "@"\n"mine": "role:x"\n"get_images": "role:a or (rule:mine)"'
    with caplog.at_level(logging.WARNING, "kilonova.policy"):
        _policy(tmp_path, text)
    assert [record.args for record in caplog.records] == [("os_compute_api:servers:creat",)]


def test_empty_policy_file_changes_nothing(tmp_path: Path) -> None:
    assert allowed(_policy(tmp_path, ""), "get_images", target()) == allowed(Policy(), "get_images", target())


# Sample file


def test_sample_policy_changes_nothing(tmp_path: Path) -> None:
    assert yaml.safe_load(sample_policy()) is None
    lines = [line[1:] for line in sample_policy().splitlines() if line.startswith('#"')]
    assert len(lines) == len(DEFAULTS)
    for name, check in parse_overrides("\n".join(lines)).items():
        assert str(check) == str(DEFAULTS[name].default), name
