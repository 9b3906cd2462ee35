"""Operations that the release before has stored: this release loads each row, and stores it again without a loss."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

import kilonova.compute.operations
import kilonova.volume.operations  # noqa: F401 - both register kinds of operations
from kilonova.operations.definition import all_kinds, find_kind
from kilonova.operations.row import OperationRow, decode_error
from kilonova.store import Row
from kilonova.store.records import encode_document

STORED = orjson.loads(Path(__file__).with_name("stored_rows.json").read_bytes())
KINDS = sorted({group["kind"] for group in STORED["operations"]})
# Kinds that the release before did not have.
ADDED_KINDS = frozenset(
    {"attach_share", "create_share", "delete_share", "detach_share", "refresh_interfaces", "restore_shares"}
)
# Parameters that may be absent, and their defaults.
OPTIONAL_PARAMS: dict[str, dict[str, object]] = {
    "boot": {"devices": False, "image_hashes": {}},
    "change_password": {"password": ""},
    "create_volume": {"image_hash": ""},
    "deferred_update_metadata": {"forgetting": False},
    "delete_volume": {"cascade": False},
    "reimage": {"image_hash": ""},
    "reimage_volume": {"image_hash": ""},
    "restore": {"rescued": False},
    "soft_delete": {"rescued": False},
    "update_metadata": {"forgetting": False},
}
# Results that no step has ever read, and that are not kept.
UNREAD_RESULTS = {"reimage": {"wait for the volume"}}
NOTHING: Any = None


def rows_of(kind: str) -> Iterator[Row]:
    """The rows, as the database returns them."""
    for group in STORED["operations"]:
        if group["kind"] == kind:
            own = {name: value for name, value in group.items() if name != "rows"}
            for row in group["rows"]:
                yield as_stored({**STORED["columns"], **own, **row})


def as_stored(row: Row) -> Row:
    error = STORED["errors"].get(row["error"])
    documents = {name: orjson.dumps(row[name]).decode() for name in ("params", "plan", "results", "note")}
    return {**row, **documents, "error": error and orjson.dumps(error).decode()}


def as_json(value: object) -> str:
    """JSON with sorted keys. Unlike values in Python, it shows that 1, 1.0 and true differ."""
    return json.dumps(json.loads(encode_document(value)), sort_keys=True)


def test_every_kind_has_rows() -> None:
    known = {operation.kind for operation in all_kinds() if operation.__module__.startswith("kilonova.")}
    assert known - ADDED_KINDS == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_loaded_without_a_loss(kind: str) -> None:
    operation = find_kind(kind)
    assert operation is not None
    for row in rows_of(kind):
        record = OperationRow.decode(row)
        operation.table().plan(record.plan, record.step)
        op = operation(record, services=NOTHING, db=NOTHING)
        params = {**OPTIONAL_PARAMS.get(kind, {}), **orjson.loads(row["params"])}
        if kind == "rescue" and params["image"] is not None:
            params["image"] = {"hash": "", **params["image"]}
        unread = UNREAD_RESULTS.get(kind, set())
        results = {step: result for step, result in orjson.loads(row["results"]).items() if step not in unread}
        for candidate in results.get("choose host", {}).get("candidates", ()):
            candidate.append({})  # the providers of groups, which the release before did not store
        assert as_json(op.params) == as_json(params)
        assert as_json(op.results) == as_json(results)
        assert as_json(op.note) == as_json(orjson.loads(row["note"]))


@pytest.mark.parametrize("kind", sorted(STORED["errors"]))
def test_errors_are_decoded(kind: str) -> None:
    stored = STORED["errors"][kind]
    error = decode_error(orjson.dumps(stored))
    assert {name: getattr(error, name) for name in stored} == stored
