"""The personas used in default rules, and the shared rules that policy files refer to as `rule:…`."""

from __future__ import annotations

from typing import NamedTuple

from kilonova.policy.checks import Always, Check, Match, Never, Role, RuleReference, TargetField


class Rule(NamedTuple):
    """A rule's name, its default, and one line on what it allows."""

    name: str
    default: Check
    description: str


def rules(prefix: str, *parts: tuple[str, Check, str]) -> tuple[Rule, ...]:
    """Rules whose names share a prefix."""
    return tuple(Rule(prefix + name, default, text) for name, default, text in parts)


ANY = Always()
NOBODY = Never()
ADMIN = RuleReference("context_is_admin")
SERVICE = RuleReference("service_api")
CLOUD_ADMIN = RuleReference("kilonova:cloud_admin")
SYSTEM_ADMIN = RuleReference("system_admin_api")
SYSTEM_READER = RuleReference("system_reader_api")
PROJECT_MANAGER = RuleReference("project_manager_api")
PROJECT_MEMBER = RuleReference("project_member_api")
PROJECT_READER = RuleReference("project_reader_api")
MANAGER_OR_ADMIN = RuleReference("project_manager_or_admin")
MEMBER_OR_ADMIN = RuleReference("project_member_or_admin")
READER_OR_ADMIN = RuleReference("project_reader_or_admin")
SERVICE_OR_ADMIN = RuleReference("service_or_admin")
OWNER = Match("user_id")
OWNER_OR_ADMIN = RuleReference("owner_user_or_admin")
PROJECT = Match("project_id")
# The project of the cloud's administrators.
ADMIN_PROJECT = Match("project_name", "admin") & Match("project_domain_id", "default")

RULES = (
    Rule("context_is_admin", Role("admin"), "Who is an administrator; also what the check is_admin:True means."),
    Rule("admin_api", Match("is_admin", "True"), "Deprecated name of context_is_admin."),
    Rule("admin_required", ADMIN, "The identity service's name of context_is_admin."),
    Rule("admin_only", ADMIN, "The network service's name of context_is_admin."),
    Rule("admin_or_owner", Match("is_admin", "True") | PROJECT, "Deprecated: any role in the target's project."),
    Rule("owner", PROJECT, "The network service's name for any role in the target's project."),
    Rule("regular_user", ANY, "The network service's name for any valid token."),
    Rule("shared", TargetField("networks:shared=True"), "Networks that every project may use."),
    Rule("network_owner", Match("project_id", "%(network:project_id)s"), "Any role in the project of the network."),
    Rule("service_api", Role("service"), "Other services of the cloud."),
    Rule("service_role", SERVICE, "The identity service's name of service_api."),
    Rule("service_or_admin", SERVICE | ADMIN, "Other services of the cloud, and administrators."),
    Rule("system_admin_api", Role("admin") & Match("system_scope", "all"), "Administrators with a system scope."),
    Rule("system_reader_api", Role("reader") & Match("system_scope", "all"), "Readers with a system scope."),
    Rule("project_admin_api", Role("admin") & PROJECT, "Administrators of the target's project."),
    Rule("project_manager_api", Role("manager") & PROJECT, "Managers of the target's project."),
    Rule("project_member_api", Role("member") & PROJECT, "Members of the target's project."),
    Rule("project_reader_api", Role("reader") & PROJECT, "Readers of the target's project."),
    Rule("project_manager_or_admin", PROJECT_MANAGER | ADMIN, "Managers of the target's project, and administrators."),
    Rule("project_member_or_admin", PROJECT_MEMBER | ADMIN, "Members of the target's project, and administrators."),
    Rule("project_reader_or_admin", PROJECT_READER | ADMIN, "Readers of the target's project, and administrators."),
    Rule(
        "domain_managed_target_role",
        Match("'manager'", "%(target.role.name)s")
        | Match("'member'", "%(target.role.name)s")
        | Match("'reader'", "%(target.role.name)s"),
        "The roles that managers of a domain may assign.",
    ),
    Rule("owner_user_or_admin", OWNER | ADMIN, "The user the target belongs to, and administrators."),
)
