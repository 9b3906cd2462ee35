"""Tables of placement: who has how much of what, and who uses it."""

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
    # A root names itself. Empty only inside the transaction that makes it, until its id is known.
    Column("root_id", BigInteger, ForeignKey("resource_providers.id")),
    # What schedulers follow: `change` grows with everything that touches the provider, `facts` is its value
    # when something other than allocations last did. See docs/decisions/0005-claims.md.
    number("change"),
    number("facts"),
    moment("created_at"),
    moment("updated_at"),
    # Whether a host speaks of it: what it no longer speaks of goes, what operators made stays.
    flag("reported", default=False),
    Index("resource_providers_change", "change"),
    Index("resource_providers_root", "root_id"),
    Index("resource_providers_parent", "parent_id"),
    sqlite_autoincrement=True,
)

# Schedulers learn from here who is no more; see kilonova.placement.changes.
departed_providers = Table(
    "departed_providers",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    number("change"),
    moment("gone_at"),
    Index("departed_providers_change", "change"),
)

resource_classes = Table("resource_classes", metadata, ident("name"), moment("created_at"), moment("updated_at"))

# Classes and traits are referred to by name: a claim then joins nothing, and rows read as they are spoken of.
# Cascading updates serve the renaming of custom classes that old API versions allow.
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
    # The ratio that the host itself wishes, which an aggregate or an operator may have replaced. Empty where no host
    # speaks of the class.
    real("own_ratio", nullable=True),
    # The ratio that host aggregates impose, while they do.
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

# An aggregate of placement is nothing but a uuid that providers share.
provider_aggregates = Table(
    "provider_aggregates",
    metadata,
    _provider(),
    Column("aggregate_uuid", Text, primary_key=True),
    flag("reported", default=False),
    Index("provider_aggregates_aggregate", "aggregate_uuid", "provider_id"),
    sqlite_with_rowid=False,
)

# A consumer is there exactly as long as it holds allocations.
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
    # Deferred, because a claim writes its consumer after the statement that decides whether there will be one.
    Column(
        "consumer_uuid",
        Text,
        ForeignKey("consumers.uuid", ondelete="CASCADE", deferrable=True, initially="DEFERRED"),
        primary_key=True,
    ),
    Column("provider_id", BigInteger, primary_key=True, autoincrement=False),
    Column("resource_class", Text, primary_key=True),
    number("used"),
    # Inventory cannot go while somebody uses it.
    ForeignKeyConstraint(
        ["provider_id", "resource_class"],
        ["inventories.provider_id", "inventories.resource_class"],
        onupdate="CASCADE",
    ),
    CheckConstraint("used > 0", name="used"),
    # Usage is summed from here; `used` in the index spares the visit to the row.
    Index("allocations_provider", "provider_id", "resource_class", "used"),
    sqlite_with_rowid=False,
)
