"""Identity: default rules under the names of the public Identity API."""

from __future__ import annotations

from kilonova.policy.base import ADMIN, ANY, SERVICE_OR_ADMIN, SYSTEM_READER, Rule, rules
from kilonova.policy.checks import Match

READER = ADMIN | SYSTEM_READER
SELF = Match("user_id", "%(target.user.id)s")
OWN_PROJECT = Match("project_id", "%(target.project.id)s")
OWN_DOMAIN = (
    Match("user_domain_id", "%(target.domain.id)s")
    | Match("project_domain_id", "%(target.domain.id)s")
    | Match("domain_id", "%(target.domain.id)s")
)
TOKEN_SUBJECT = Match("user_id", "%(target.token.user_id)s")

RULES: tuple[Rule, ...] = rules(
    "identity:",
    ("validate_token", SERVICE_OR_ADMIN | SYSTEM_READER | TOKEN_SUBJECT, "Validate a token."),
    ("check_token", SERVICE_OR_ADMIN | SYSTEM_READER | TOKEN_SUBJECT, "Check whether a token is valid."),
    ("revoke_token", ADMIN | TOKEN_SUBJECT, "Revoke a token."),
    ("get_auth_catalog", ANY, "Show the catalogue of the own token."),
    ("get_auth_projects", ANY, "List the projects the own token can be scoped to."),
    ("get_auth_domains", ANY, "List the domains the own token can be scoped to."),
    ("get_auth_system", ANY, "List the systems the own token can be scoped to."),
    ("get_domain", READER | OWN_DOMAIN, "Show a domain."),
    ("list_domains", READER, "List domains."),
    ("create_domain", ADMIN, "Create a domain."),
    ("update_domain", ADMIN, "Change a domain."),
    ("delete_domain", ADMIN, "Delete a domain."),
    ("get_project", READER | OWN_PROJECT, "Show a project."),
    ("list_projects", READER, "List projects."),
    ("list_user_projects", READER | SELF, "List the projects a user has a role in."),
    ("create_project", ADMIN, "Create a project."),
    ("update_project", ADMIN, "Change a project."),
    ("delete_project", ADMIN, "Delete a project."),
    ("list_project_tags", READER | OWN_PROJECT, "List a project's tags."),
    ("get_project_tag", READER | OWN_PROJECT, "Check whether a project has a tag."),
    ("update_project_tags", ADMIN, "Replace a project's tags."),
    ("create_project_tag", ADMIN, "Add a tag to a project."),
    ("delete_project_tag", ADMIN, "Delete a tag of a project."),
    ("delete_project_tags", ADMIN, "Delete all tags of a project."),
    ("get_user", READER | SELF, "Show a user."),
    ("list_users", READER, "List users."),
    ("create_user", ADMIN, "Create a user."),
    ("update_user", ADMIN, "Change a user."),
    ("delete_user", ADMIN, "Delete a user."),
    ("change_password", SELF, "Change the own password, giving the old one."),
    ("list_groups", READER, "List groups."),
    ("list_groups_for_user", READER | SELF, "List the groups a user is in."),
    ("get_role", READER, "Show a role."),
    ("list_roles", READER, "List roles."),
    ("create_role", ADMIN, "Create a role."),
    ("update_role", ADMIN, "Change a role."),
    ("delete_role", ADMIN, "Delete a role."),
    ("get_implied_role", READER, "Show what a role implies."),
    ("list_implied_roles", READER, "List what a role implies."),
    ("check_implied_role", READER, "Check whether a role implies another."),
    ("create_implied_role", ADMIN, "Make a role imply another."),
    ("delete_implied_role", ADMIN, "Stop a role from implying another."),
    ("list_role_inference_rules", READER, "List all implications between roles."),
    ("check_grant", READER, "Check whether a user has a role on a project or domain."),
    ("list_grants", READER, "List the roles a user has on a project or domain."),
    ("create_grant", ADMIN, "Give a user a role on a project or domain."),
    ("revoke_grant", ADMIN, "Take a role on a project or domain from a user."),
    ("check_system_grant_for_user", READER, "Check whether a user has a role on the system."),
    ("list_system_grants_for_user", READER, "List the roles a user has on the system."),
    ("create_system_grant_for_user", ADMIN, "Give a user a role on the system."),
    ("revoke_system_grant_for_user", ADMIN, "Take a role on the system from a user."),
    ("list_role_assignments", READER, "List role assignments."),
    ("get_service", READER, "Show a service of the catalogue."),
    ("list_services", READER, "List the services of the catalogue."),
    ("get_endpoint", READER, "Show an endpoint of the catalogue."),
    ("list_endpoints", READER, "List the endpoints of the catalogue."),
    ("get_region", ANY, "Show a region."),
    ("list_regions", ANY, "List regions."),
)
