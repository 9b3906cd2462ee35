"""Placement: default rules under the names of the public Placement API."""

from __future__ import annotations

from kilonova.policy.base import PROJECT_READER, SERVICE, Rule, rules
from kilonova.policy.base import SERVICE_OR_ADMIN as ANY_SCOPE
from kilonova.policy.checks import Match

# Placement accepts no system-scoped tokens.
_PROJECT = ~Match("system_scope", "all")
SERVICE_OR_ADMIN = ANY_SCOPE & _PROJECT

RULES: tuple[Rule, ...] = rules(
    "placement:",
    ("resource_providers:list", SERVICE_OR_ADMIN, "List resource providers."),
    ("resource_providers:create", SERVICE_OR_ADMIN, "Create a resource provider."),
    ("resource_providers:show", SERVICE_OR_ADMIN, "Show a resource provider."),
    ("resource_providers:update", SERVICE_OR_ADMIN, "Change a resource provider."),
    ("resource_providers:delete", SERVICE_OR_ADMIN, "Delete a resource provider."),
    ("resource_classes:list", SERVICE_OR_ADMIN, "List resource classes."),
    ("resource_classes:create", SERVICE_OR_ADMIN, "Create a resource class."),
    ("resource_classes:show", SERVICE_OR_ADMIN, "Show a resource class."),
    ("resource_classes:update", SERVICE_OR_ADMIN, "Rename or ensure a resource class."),
    ("resource_classes:delete", SERVICE_OR_ADMIN, "Delete a resource class."),
    ("resource_providers:inventories:list", SERVICE_OR_ADMIN, "List a provider's inventories."),
    ("resource_providers:inventories:create", SERVICE_OR_ADMIN, "Add an inventory to a provider."),
    ("resource_providers:inventories:show", SERVICE_OR_ADMIN, "Show an inventory of a provider."),
    ("resource_providers:inventories:update", SERVICE_OR_ADMIN, "Change a provider's inventories."),
    ("resource_providers:inventories:delete", SERVICE_OR_ADMIN, "Delete a provider's inventories."),
    ("resource_providers:aggregates:list", SERVICE_OR_ADMIN, "List a provider's aggregates."),
    ("resource_providers:aggregates:update", SERVICE_OR_ADMIN, "Replace a provider's aggregates."),
    ("resource_providers:usages", SERVICE_OR_ADMIN, "Show what is used of a provider."),
    ("usages", PROJECT_READER | SERVICE_OR_ADMIN, "Show what a project uses."),
    ("traits:list", SERVICE_OR_ADMIN, "List traits."),
    ("traits:show", SERVICE_OR_ADMIN, "Check whether a trait exists."),
    ("traits:update", SERVICE_OR_ADMIN, "Create a trait."),
    ("traits:delete", SERVICE_OR_ADMIN, "Delete a trait."),
    ("resource_providers:traits:list", SERVICE_OR_ADMIN, "List a provider's traits."),
    ("resource_providers:traits:update", SERVICE_OR_ADMIN, "Replace a provider's traits."),
    ("resource_providers:traits:delete", SERVICE_OR_ADMIN, "Delete a provider's traits."),
    ("resource_providers:allocations:list", SERVICE_OR_ADMIN, "List the allocations against a provider."),
    ("allocations:list", SERVICE_OR_ADMIN, "List the allocations of a consumer."),
    ("allocations:manage", SERVICE_OR_ADMIN, "Change the allocations of several consumers."),
    ("allocations:update", SERVICE_OR_ADMIN, "Replace the allocations of a consumer."),
    ("allocations:delete", SERVICE_OR_ADMIN, "Delete the allocations of a consumer."),
    ("allocation_candidates:list", SERVICE_OR_ADMIN, "List allocation candidates."),
    ("reshaper:reshape", SERVICE & _PROJECT, "Move inventories and allocations between providers."),
)
