"""Providers, inventories, consumers and allocations as records."""

from __future__ import annotations

from typing import ClassVar

from kilonova.store.records import Record


class ResourceProvider(Record, frozen=True):
    table: ClassVar[str] = "resource_providers"

    id: int
    uuid: str
    generation: int
    parent_id: int | None
    root_id: int | None
    updated_at: float

    @property
    def root(self) -> int:
        """The id of the tree's root."""
        return self.id if self.root_id is None else self.root_id


class Inventory(Record, frozen=True):
    table: ClassVar[str] = "inventories"

    provider_id: int
    resource_class: str
    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float


class StoredConsumer(Record, frozen=True):
    table: ClassVar[str] = "consumers"

    uuid: str
    project_id: str
    user_id: str
    type: str | None
    generation: int
    updated_at: float


class Allocation(Record, frozen=True):
    table: ClassVar[str] = "allocations"

    consumer_uuid: str
    provider_id: int
    resource_class: str
    used: int
