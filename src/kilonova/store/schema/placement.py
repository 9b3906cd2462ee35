"""Tables of placement: providers, inventories, traits, consumers and allocations."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, ForeignKeyConstraint, Index, Table, Text

from kilonova.store.schema.base import flag, ident, metadata, moment, number, real, sequence, string


def _provider() -> Column[Any]:
    """The owning provider, first part of the primary key."""
    target = ForeignKey("resource_providers.id", ondelete="CASCADE")
    return Column("provider_id", BigInteger, target, primary_key=True)


resource_providers = Table(
    "resource_providers",
    metadata,
    sequence("id"),
    Column("uuid", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False, unique=True),
    number("generation"),
    Column("parent_id", BigInteger, ForeignKey("resource_providers.id")),
    # A root refers to itself. Null only inside the transaction that creates it, until its id is known.
    Column("root_id", BigInteger, ForeignKey("resource_providers.id")),
    # For the schedulers' snapshots: `change` grows with every change of the provider, `facts` is the value of `change`
    # at the last change other than of allocations. See docs/decisions/0005-claims.md.
    number("change"),
    number("facts"),
    moment("created_at"),
    moment("updated_at"),
    # Whether a host reports the provider: such providers are deleted when no longer reported, others stay.
    flag("reported", default=False),
    Index("resource_providers_change", "change"),
    Index("resource_providers_root", "root_id"),
    Index("resource_providers_parent", "parent_id"),
    sqlite_autoincrement=True,
)

# Deleted providers, for the schedulers' snapshots; see kilonova.placement.changes.
departed_providers = Table(
    "departed_providers",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    number("change"),
    moment("gone_at"),
    Index("departed_providers_change", "change"),
)

resource_classes = Table("resource_classes", metadata, ident("name"), moment("created_at"), moment("updated_at"))

# Classes and traits are referred to by name, so that a claim needs no joins.
# Cascading updates are for renamed custom classes, which old API versions allow.
inventories = Table(
    "inventories",
    metadata,
    _provider(),
    Column("resource_class", Text, ForeignKey("resource_classes.name", onupdate="CASCADE"), primary_key=True),
    number("total"),
    number("reserved"),
    number("min_unit"),
    number("max_unit"),
    number("step_size"),
    real("allocation_ratio"),
    # The allocation ratio reported by the host, which an aggregate or an operator may override. Null if no host reports
    # the class.
    real("own_ratio", nullable=True),
    # The allocation ratio set by host aggregates, if any.
    real("aggregate_ratio", nullable=True),
    CheckConstraint("step_size > 0", name="step_size"),
    Index("inventories_class", "resource_class", "provider_id"),
    sqlite_with_rowid=False,
)

traits = Table("traits", metadata, ident("name"), moment("created_at"), moment("updated_at"))

provider_traits = Table(
    "provider_traits",
    metadata,
    _provider(),
    Column("trait", Text, ForeignKey("traits.name"), primary_key=True),
    flag("reported", default=False),
    Index("provider_traits_trait", "trait", "provider_id"),
    sqlite_with_rowid=False,
)

# A placement aggregate is only a uuid that providers share.
provider_aggregates = Table(
    "provider_aggregates",
    metadata,
    _provider(),
    Column("aggregate_uuid", Text, primary_key=True),
    flag("reported", default=False),
    Index("provider_aggregates_aggregate", "aggregate_uuid", "provider_id"),
    sqlite_with_rowid=False,
)

# A consumer exists as long as it has allocations.
consumers = Table(
    "consumers",
    metadata,
    ident("uuid"),
    string("project_id"),
    string("user_id"),
    string("type", nullable=True),
    number("generation"),
    moment("created_at"),
    moment("updated_at"),
    Index("consumers_project", "project_id", "user_id"),
)

allocations = Table(
    "allocations",
    metadata,
    # Deferred, because a claim writes its consumer after the allocations.
    Column(
        "consumer_uuid",
        Text,
        ForeignKey("consumers.uuid", ondelete="CASCADE", deferrable=True, initially="DEFERRED"),
        primary_key=True,
    ),
    Column("provider_id", BigInteger, primary_key=True, autoincrement=False),
    Column("resource_class", Text, primary_key=True),
    number("used"),
    # An inventory cannot be deleted while it has allocations.
    ForeignKeyConstraint(
        ["provider_id", "resource_class"],
        ["inventories.provider_id", "inventories.resource_class"],
        onupdate="CASCADE",
    ),
    CheckConstraint("used > 0", name="used"),
    # For sums of usage: with `used` in the index, rows need not be read.
    Index("allocations_provider", "provider_id", "resource_class", "used"),
    sqlite_with_rowid=False,
)
