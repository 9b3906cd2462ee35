"""Identity: default rules under the names of the public Identity API."""

from __future__ import annotations

from kilonova.policy.base import ADMIN, ANY, SERVICE_OR_ADMIN, SYSTEM_READER, Rule, rules
from kilonova.policy.checks import Check, Match, Role, RuleReference

READER = ADMIN | SYSTEM_READER
SELF = Match("user_id", "%(target.user.id)s")
OWN_PROJECT = Match("project_id", "%(target.project.id)s")
OWN_DOMAIN = (
    Match("user_domain_id", "%(target.domain.id)s")
    | Match("project_domain_id", "%(target.domain.id)s")
    | Match("domain_id", "%(target.domain.id)s")
)
CREDENTIAL_OWNER = Match("user_id", "%(target.credential.user_id)s")
TRUSTOR = Match("user_id", "%(target.trust.trustor_user_id)s")
TRUSTEE = Match("user_id", "%(target.trust.trustee_user_id)s")
TOKEN_SUBJECT = Match("user_id", "%(target.token.user_id)s")


def in_domain(noun: str) -> Check:
    """The token is for the domain of the target: of a user, group or project, or of a list (`list`)."""
    return Match("domain_id", f"%(target.{noun}.domain_id)s" if noun != "list" else "%(target.domain_id)s")


def reader_of(noun: str) -> Check:
    """Allows administrators and readers of the system to read all objects, readers of a domain those of the domain."""
    return READER | (Role("reader") & in_domain(noun))


def manager_of(noun: str) -> Check:
    """Allows administrators to change all objects, and managers of a domain those of the domain."""
    return ADMIN | (Role("manager") & in_domain(noun))


MEMBER_IN_DOMAIN = in_domain("group") & in_domain("user")
GRANT_IN_DOMAIN = (in_domain("user") | in_domain("group")) & (
    in_domain("project") | Match("domain_id", "%(target.domain.id)s")
)
# The roles that managers of a domain may assign.
MANAGED_ROLE = RuleReference("domain_managed_target_role")
GRANT_READER = READER | (Role("reader") & GRANT_IN_DOMAIN)
GRANT_MANAGER = ADMIN | (Role("manager") & GRANT_IN_DOMAIN & MANAGED_ROLE)

LIMIT_READER = (
    READER
    | Match("domain_id", "%(target.limit.domain.id)s")
    | Match("domain_id", "%(target.limit.project.domain_id)s")
    | Match("project_id", "%(target.limit.project_id)s")
)

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
    ("list_domains", READER | (Role("reader") & Match("domain_id", "%(target.domain.id)s")), "List domains."),
    ("create_domain", ADMIN, "Create a domain."),
    ("update_domain", ADMIN, "Change a domain."),
    ("delete_domain", ADMIN, "Delete a domain."),
    ("get_project", reader_of("project") | OWN_PROJECT, "Show a project."),
    ("list_projects", reader_of("list"), "List projects."),
    ("list_user_projects", reader_of("user") | SELF, "List the projects a user has a role in."),
    ("create_project", manager_of("project"), "Create a project."),
    ("update_project", manager_of("project"), "Change a project."),
    ("delete_project", manager_of("project"), "Delete a project."),
    ("list_project_tags", reader_of("project") | OWN_PROJECT, "List a project's tags."),
    ("get_project_tag", reader_of("project") | OWN_PROJECT, "Check whether a project has a tag."),
    ("update_project_tags", manager_of("project"), "Replace a project's tags."),
    ("create_project_tag", manager_of("project"), "Add a tag to a project."),
    ("delete_project_tag", manager_of("project"), "Delete a tag of a project."),
    ("delete_project_tags", manager_of("project"), "Delete all tags of a project."),
    ("get_user", reader_of("user") | SELF, "Show a user."),
    ("list_users", reader_of("list"), "List users."),
    ("create_user", manager_of("user"), "Create a user."),
    ("update_user", manager_of("user"), "Change a user."),
    ("delete_user", manager_of("user"), "Delete a user."),
    ("change_password", SELF, "Change the own password, giving the old one."),
    ("get_credential", READER | CREDENTIAL_OWNER, "Show a credential."),
    ("list_credentials", READER | CREDENTIAL_OWNER, "List credentials."),
    ("create_credential", ADMIN | CREDENTIAL_OWNER, "Store a credential."),
    ("update_credential", ADMIN | CREDENTIAL_OWNER, "Change a credential."),
    ("delete_credential", ADMIN | CREDENTIAL_OWNER, "Delete a credential."),
    ("ec2_get_credential", READER | CREDENTIAL_OWNER, "Show an EC2 credential."),
    ("ec2_list_credentials", READER | SELF, "List the EC2 credentials of a user."),
    ("ec2_create_credential", ADMIN | (Role("member") & CREDENTIAL_OWNER), "Create an EC2 credential."),
    ("ec2_delete_credential", ADMIN | (Role("member") & CREDENTIAL_OWNER), "Delete an EC2 credential."),
    ("ec2tokens_validate", SERVICE_OR_ADMIN, "Get a token for a request that is signed with an EC2 credential."),
    ("s3tokens_validate", SERVICE_OR_ADMIN, "Get a token for an S3 request that is signed with an EC2 credential."),
    ("get_application_credential", READER | SELF, "Show an application credential."),
    ("list_application_credentials", READER | SELF, "List the application credentials of a user."),
    ("create_application_credential", SELF, "Create an application credential of the own user."),
    ("delete_application_credential", ADMIN | SELF, "Delete an application credential."),
    ("get_access_rule", READER | SELF, "Show an access rule."),
    ("list_access_rules", READER | SELF, "List the access rules of a user."),
    ("delete_access_rule", ADMIN | SELF, "Delete an access rule."),
    ("create_trust", TRUSTOR, "Create a trust."),
    ("list_trusts", READER, "List trusts."),
    ("list_trusts_for_trustor", READER | TRUSTOR, "List the trusts of a trustor."),
    ("list_trusts_for_trustee", READER | TRUSTEE, "List the trusts of a trustee."),
    ("get_trust", READER | TRUSTOR | TRUSTEE, "Show a trust."),
    ("delete_trust", ADMIN | TRUSTOR, "Delete a trust."),
    ("list_roles_for_trust", READER | TRUSTOR | TRUSTEE, "List the roles of a trust."),
    ("get_role_for_trust", READER | TRUSTOR | TRUSTEE, "Show a role of a trust."),
    ("list_groups", reader_of("group"), "List groups."),
    ("list_groups_for_user", reader_of("user") | SELF, "List the groups a user is in."),
    ("get_group", reader_of("group"), "Show a group."),
    ("create_group", manager_of("group"), "Create a group."),
    ("update_group", manager_of("group"), "Change a group."),
    ("delete_group", manager_of("group"), "Delete a group."),
    ("list_users_in_group", reader_of("group"), "List the users in a group."),
    (
        "check_user_in_group",
        READER | (Role("reader") & MEMBER_IN_DOMAIN),
        "Check whether a user is in a group.",
    ),
    ("add_user_to_group", ADMIN | (Role("manager") & MEMBER_IN_DOMAIN), "Add a user to a group."),
    ("remove_user_from_group", ADMIN | (Role("manager") & MEMBER_IN_DOMAIN), "Remove a user from a group."),
    ("get_role", READER | (Role("manager") & MANAGED_ROLE), "Show a role."),
    ("list_roles", READER | (Role("manager") & in_domain("list")), "List roles."),
    ("create_role", ADMIN, "Create a role."),
    ("update_role", ADMIN, "Change a role."),
    ("delete_role", ADMIN, "Delete a role."),
    ("get_domain_role", READER, "Show a role of a domain."),
    ("list_domain_roles", READER, "List the roles of a domain."),
    ("create_domain_role", ADMIN, "Create a role of a domain."),
    ("update_domain_role", ADMIN, "Change a role of a domain."),
    ("delete_domain_role", ADMIN, "Delete a role of a domain."),
    ("get_implied_role", READER, "Show what a role implies."),
    ("list_implied_roles", READER, "List what a role implies."),
    ("check_implied_role", READER, "Check whether a role implies another."),
    ("create_implied_role", ADMIN, "Make a role imply another."),
    ("delete_implied_role", ADMIN, "Stop a role from implying another."),
    ("list_role_inference_rules", READER, "List all implications between roles."),
    ("check_grant", GRANT_READER, "Check whether a user or group has a role on a project or domain."),
    ("list_grants", GRANT_READER, "List the roles a user or group has on a project or domain."),
    ("create_grant", GRANT_MANAGER, "Give a user or group a role on a project or domain."),
    ("revoke_grant", GRANT_MANAGER, "Take a role on a project or domain from a user or group."),
    ("check_system_grant_for_user", READER, "Check whether a user has a role on the system."),
    ("list_system_grants_for_user", READER, "List the roles a user has on the system."),
    ("create_system_grant_for_user", ADMIN, "Give a user a role on the system."),
    ("revoke_system_grant_for_user", ADMIN, "Take a role on the system from a user."),
    ("check_system_grant_for_group", READER, "Check whether a group has a role on the system."),
    ("list_system_grants_for_group", READER, "List the roles a group has on the system."),
    ("create_system_grant_for_group", ADMIN, "Give a group a role on the system."),
    ("revoke_system_grant_for_group", ADMIN, "Take a role on the system from a group."),
    ("list_role_assignments", reader_of("list"), "List role assignments."),
    ("list_role_assignments_for_tree", reader_of("list"), "List the role assignments of a project and those below it."),
    ("get_registered_limit", ANY, "Show a registered limit."),
    ("list_registered_limits", ANY, "List registered limits."),
    ("create_registered_limits", ADMIN, "Create registered limits."),
    ("update_registered_limit", ADMIN, "Change a registered limit."),
    ("delete_registered_limit", ADMIN, "Delete a registered limit."),
    ("get_limit_model", ANY, "Show by which model services enforce limits."),
    ("get_limit", LIMIT_READER, "Show a limit."),
    ("list_limits", ANY, "List the limits that the caller may see."),
    ("create_limits", ADMIN, "Create limits of projects and domains."),
    ("update_limit", ADMIN, "Change a limit."),
    ("delete_limit", ADMIN, "Delete a limit."),
    ("get_service", READER, "Show a service of the catalogue."),
    ("list_services", READER, "List the services of the catalogue."),
    ("create_service", ADMIN, "Register a service."),
    ("update_service", ADMIN, "Change a registered service."),
    ("delete_service", ADMIN, "Delete a registered service."),
    ("get_endpoint", READER, "Show an endpoint of the catalogue."),
    ("list_endpoints", READER, "List the endpoints of the catalogue."),
    ("create_endpoint", ADMIN, "Register an endpoint."),
    ("update_endpoint", ADMIN, "Change a registered endpoint."),
    ("delete_endpoint", ADMIN, "Delete a registered endpoint."),
    ("get_endpoint_group", READER, "Show an endpoint group."),
    ("list_endpoint_groups", READER, "List endpoint groups."),
    ("create_endpoint_group", ADMIN, "Create an endpoint group."),
    ("update_endpoint_group", ADMIN, "Change an endpoint group."),
    ("delete_endpoint_group", ADMIN, "Delete an endpoint group."),
    ("list_endpoints_associated_with_endpoint_group", READER, "List the endpoints of an endpoint group."),
    ("list_projects_associated_with_endpoint_group", READER, "List the projects that an endpoint group is added to."),
    ("list_endpoint_groups_for_project", READER, "List the endpoint groups that are added to a project."),
    ("get_endpoint_group_in_project", READER, "Check whether an endpoint group is added to a project."),
    ("add_endpoint_group_to_project", ADMIN, "Add an endpoint group to a project."),
    ("remove_endpoint_group_from_project", ADMIN, "Remove an endpoint group from a project."),
    ("list_projects_for_endpoint", READER, "List the projects that an endpoint is added to."),
    ("list_endpoints_for_project", READER, "List the endpoints that are added to a project."),
    ("check_endpoint_in_project", READER, "Check whether an endpoint is added to a project."),
    ("add_endpoint_to_project", ADMIN, "Add an endpoint to a project."),
    ("remove_endpoint_from_project", ADMIN, "Remove an endpoint from a project."),
    ("get_policy", READER, "Show a stored policy."),
    ("list_policies", READER, "List stored policies."),
    ("create_policy", ADMIN, "Store a policy."),
    ("update_policy", ADMIN, "Change a stored policy."),
    ("delete_policy", ADMIN, "Delete a stored policy."),
    *(
        rule
        for noun, text in (
            ("identity_provider", "an identity provider"),
            ("mapping", "a mapping"),
            ("service_provider", "a service provider"),
        )
        for rule in (
            (f"get_{noun}", READER, f"Show {text}, which is not supported."),
            (f"list_{noun}s", READER, f"List {text.split(' ', 1)[1]}s: there are none."),
            (f"create_{noun}", ADMIN, f"Create {text}, which is not supported."),
            (f"update_{noun}", ADMIN, f"Change {text}, which is not supported."),
            (f"delete_{noun}", ADMIN, f"Delete {text}, which is not supported."),
        )
    ),
    ("get_domain_config", READER, "Show the settings of a domain: there are none."),
    ("create_domain_config", ADMIN, "Create settings of a domain, which is not supported."),
    ("update_domain_config", ADMIN, "Change settings of a domain, which is not supported."),
    ("delete_domain_config", ADMIN, "Delete settings of a domain: there are none."),
    ("get_region", ANY, "Show a region."),
    ("list_regions", ANY, "List regions."),
    ("create_region", ADMIN, "Create a region."),
    ("update_region", ADMIN, "Change a region."),
    ("delete_region", ADMIN, "Delete a region."),
)
