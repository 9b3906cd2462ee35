"""Tables of the built-in identity service."""

from __future__ import annotations

from sqlalchemy import Column, Index, PrimaryKeyConstraint, Table, Text, UniqueConstraint

from kilonova.store.schema.base import document, flag, ident, metadata, moment, number, reference, string

domains = Table(
    "domains",
    metadata,
    ident(),
    string("name"),
    string("description"),
    flag("enabled"),
    document("extra"),
    UniqueConstraint("name"),
)

projects = Table(
    "projects",
    metadata,
    ident(),
    reference("domain_id", "domains.id"),
    # Null for a project directly below its domain.
    reference("parent_id", "projects.id", nullable=True),
    string("name"),
    string("description"),
    flag("enabled"),
    document("tags"),
    document("extra"),
    UniqueConstraint("domain_id", "name"),
    Index(None, "name"),
    Index(None, "parent_id"),
)

users = Table(
    "users",
    metadata,
    ident(),
    reference("domain_id", "domains.id"),
    string("name"),
    flag("enabled"),
    # No foreign key: as in the public API, a user may keep the id of a deleted project.
    string("default_project_id", nullable=True),
    string("password_hash", nullable=True),
    document("extra"),
    # Null while the password is the one that the first start of the cloud generated.
    moment("password_changed_at", nullable=True),
    # Tokens with a lower number are revoked. A new password and disabling the user increase it.
    number("token_epoch", default=0),
    UniqueConstraint("domain_id", "name"),
    Index(None, "name"),
    Index(None, "default_project_id"),
)

groups = Table(
    "groups",
    metadata,
    ident(),
    reference("domain_id", "domains.id"),
    string("name"),
    string("description"),
    document("extra"),
    UniqueConstraint("domain_id", "name"),
    Index(None, "name"),
)

group_members = Table(
    "group_members",
    metadata,
    reference("group_id", "groups.id", ondelete="CASCADE"),
    reference("user_id", "users.id", ondelete="CASCADE"),
    PrimaryKeyConstraint("group_id", "user_id"),
    Index(None, "user_id"),
)

roles = Table(
    "roles",
    metadata,
    ident(),
    # Empty for a role of the whole cloud: unlike null, it is unique together with the name.
    string("domain_id", default=""),
    string("name"),
    string("description", nullable=True),
    document("extra"),
    UniqueConstraint("domain_id", "name"),
)

implied_roles = Table(
    "implied_roles",
    metadata,
    reference("prior_id", "roles.id", ondelete="CASCADE"),
    reference("implied_id", "roles.id", ondelete="CASCADE"),
    PrimaryKeyConstraint("prior_id", "implied_id"),
    Index(None, "implied_id"),
)

# The target of a role: `project` or `domain` with its id, `system` with the id `all`, `inherited` with the id of the
# domain whose projects inherit the role, or `inherited_project` with the id of the project whose subprojects do.
role_assignments = Table(
    "role_assignments",
    metadata,
    reference("user_id", "users.id", ondelete="CASCADE"),
    string("target_kind"),
    string("target_id"),
    reference("role_id", "roles.id", ondelete="CASCADE"),
    PrimaryKeyConstraint("user_id", "target_kind", "target_id", "role_id"),
    Index(None, "target_kind", "target_id"),
    Index(None, "role_id"),
)

group_role_assignments = Table(
    "group_role_assignments",
    metadata,
    reference("group_id", "groups.id", ondelete="CASCADE"),
    string("target_kind"),
    string("target_id"),
    reference("role_id", "roles.id", ondelete="CASCADE"),
    PrimaryKeyConstraint("group_id", "target_kind", "target_id", "role_id"),
    Index(None, "target_kind", "target_id"),
    Index(None, "role_id"),
)

credentials = Table(
    "credentials",
    metadata,
    ident(),
    reference("user_id", "users.id", ondelete="CASCADE"),
    reference("project_id", "projects.id", nullable=True, ondelete="CASCADE"),
    string("type"),
    # Encrypted with the credential keys.
    string("encrypted_blob"),
    document("extra"),
    Index(None, "user_id"),
    Index(None, "project_id"),
)

application_credentials = Table(
    "application_credentials",
    metadata,
    ident(),
    reference("user_id", "users.id", ondelete="CASCADE"),
    reference("project_id", "projects.id", ondelete="CASCADE"),
    string("name"),
    string("description", nullable=True),
    string("secret_hash"),
    document("role_ids"),
    flag("unrestricted"),
    # Whether only the requests of its access rules are allowed: without any, none are.
    flag("has_access_rules"),
    moment("expires_at", nullable=True),
    UniqueConstraint("user_id", "name"),
    Index(None, "project_id"),
)

access_rules = Table(
    "access_rules",
    metadata,
    ident(),
    reference("user_id", "users.id", ondelete="CASCADE"),
    string("service"),
    string("method"),
    string("path"),
    UniqueConstraint("user_id", "service", "method", "path"),
)

application_credential_rules = Table(
    "application_credential_rules",
    metadata,
    reference("application_credential_id", "application_credentials.id", ondelete="CASCADE"),
    reference("access_rule_id", "access_rules.id", ondelete="CASCADE"),
    PrimaryKeyConstraint("application_credential_id", "access_rule_id"),
    Index(None, "access_rule_id"),
)

trusts = Table(
    "trusts",
    metadata,
    ident(),
    reference("trustor_user_id", "users.id", ondelete="CASCADE"),
    reference("trustee_user_id", "users.id", ondelete="CASCADE"),
    # Null for a trust that gives no roles.
    reference("project_id", "projects.id", nullable=True, ondelete="CASCADE"),
    flag("impersonation"),
    document("role_ids"),
    moment("expires_at", nullable=True),
    # Null: any number of tokens.
    number("remaining_uses", nullable=True),
    # How many times the trust may be passed on; 0: never.
    number("redelegation_count"),
    # The trust that was passed on. It ends this one.
    reference("redelegated_trust_id", "trusts.id", nullable=True, ondelete="CASCADE"),
    document("extra"),
    Index(None, "trustor_user_id"),
    Index(None, "trustee_user_id"),
    Index(None, "project_id"),
    Index(None, "redelegated_trust_id"),
)

registered_limits = Table(
    "registered_limits",
    metadata,
    ident(),
    string("service_id"),
    # Empty for all regions: unlike null, it is unique together with the rest.
    string("region_id"),
    string("resource_name"),
    number("default_limit"),
    string("description", nullable=True),
    document("extra"),
    UniqueConstraint("service_id", "region_id", "resource_name"),
)

# Limits of a project, or of a domain, instead of the default of the registered limit.
limits = Table(
    "limits",
    metadata,
    ident(),
    reference("registered_limit_id", "registered_limits.id"),
    reference("project_id", "projects.id", nullable=True, ondelete="CASCADE"),
    reference("domain_id", "domains.id", nullable=True, ondelete="CASCADE"),
    number("resource_limit"),
    string("description", nullable=True),
    document("extra"),
    UniqueConstraint("registered_limit_id", "project_id"),
    UniqueConstraint("registered_limit_id", "domain_id"),
    Index(None, "project_id"),
    Index(None, "domain_id"),
)

# Entries of the catalogue beside those of the cloud's own services, which come from the configuration. So references to
# services and regions have no foreign keys.
regions = Table(
    "regions",
    metadata,
    ident(),
    string("description"),
    string("parent_region_id", nullable=True),
    document("extra"),
    Index(None, "parent_region_id"),
)

catalog_services = Table(
    "catalog_services",
    metadata,
    ident(),
    string("type"),
    string("name"),
    string("description"),
    flag("enabled"),
    document("extra"),
)

catalog_endpoints = Table(
    "catalog_endpoints",
    metadata,
    ident(),
    string("service_id"),
    string("region_id", nullable=True),
    string("interface"),
    string("url"),
    flag("enabled"),
    document("extra"),
    Index(None, "service_id"),
    Index(None, "region_id"),
)

# The endpoints that match the filters. A project with groups or endpoints of its own has only those in its catalogue.
endpoint_groups = Table(
    "endpoint_groups",
    metadata,
    ident(),
    string("name"),
    string("description", nullable=True),
    document("filters"),
    document("extra"),
)

endpoint_group_projects = Table(
    "endpoint_group_projects",
    metadata,
    reference("endpoint_group_id", "endpoint_groups.id", ondelete="CASCADE"),
    reference("project_id", "projects.id", ondelete="CASCADE"),
    PrimaryKeyConstraint("endpoint_group_id", "project_id"),
    Index(None, "project_id"),
)

endpoint_projects = Table(
    "endpoint_projects",
    metadata,
    # No foreign key: the endpoints of the cloud's own services are not stored.
    string("endpoint_id"),
    reference("project_id", "projects.id", ondelete="CASCADE"),
    PrimaryKeyConstraint("endpoint_id", "project_id"),
    Index(None, "project_id"),
)

# Documents that clients store and interpret.
policies = Table("policies", metadata, ident(), string("type"), document("blob"), document("extra"))

# Tokens of the subject issued until `issued_until` are revoked. A row can be deleted when all of them have expired.
revocations = Table(
    "revocations",
    metadata,
    Column("subject", Text, primary_key=True),
    moment("issued_until"),
    moment("expires_at"),
    Index(None, "expires_at"),
)
