"""The status of a migration by its type, its outcome, and the state and step of its operation."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

import kilonova.compute.operations  # noqa: F401 - declares the operations that move servers
from kilonova.compute.migrations import status
from kilonova.compute.operations.steps.move import Move
from kilonova.operations.definition import all_kinds
from tests.compute.migrations.support import flavor

TYPE_OF_KIND = {
    "live_migrate": "live-migration",
    "resize": "resize",
    "migrate": "migration",
    "evacuate": "evacuation",
}
FAILURE = orjson.dumps({"type": "Failed", "message": "No valid host was found", "fault": "host1 is full"}).decode()
CANCEL = orjson.dumps({"type": "Cancelled", "message": "Cancelled", "fault": None}).decode()


def migration(type: str, state: str, step: str = "choose host", **more: Any) -> status.ShownMigration:
    row = {
        "id": 1,
        "operation_id": "o",
        "server_id": "s",
        "project_id": "p",
        "user_id": "u",
        "type": type,
        "source_host": "h1",
        "source_node": "n1",
        "dest_host": None,
        "dest_node": None,
        "transfer": None,
        "old_flavor": flavor("1"),
        "new_flavor": flavor("1"),
        "old_vm_state": "active",
        "old_power_state": 1,
        "created_at": 1.0,
        "updated_at": 1.0,
        "changed_at": 1.0,
        "outcome": None,
        "state": state,
        "step": step,
        "undo_to": None,
        "error": None,
        "ending": None,
    }
    return status.decode({**row, **more})


@pytest.mark.parametrize(
    "type, step, word",
    [
        *(("live-migration", step, "queued") for step in ("choose host", "claim", "wait for slot")),
        *(("live-migration", step, "preparing") for step in ("prepare destination", "bind ports")),
        ("live-migration", "migrate guest", "running"),
        *(("live-migration", step, "post-migrating") for step in ("move ports", "hand over")),
        *(
            (type, step, word)
            for type in ("resize", "migration")
            for step, word in (
                ("choose host", "pre-migrating"),
                ("claim", "pre-migrating"),
                ("stop guest", "migrating"),
                ("park guest", "migrating"),
                ("move ports", "post-migrating"),
                ("build guest", "post-migrating"),
                ("hand over", "post-migrating"),
            )
        ),
        *(("evacuation", step, "accepted") for step in ("choose host", "claim")),
        *(("evacuation", step, "pre-migrating") for step in ("move ports", "build guest", "hand over")),
    ],
)
@pytest.mark.parametrize("state", ["queued", "running", "waiting"])
def test_status_by_step(type: str, state: str, step: str, word: str) -> None:
    assert status.status(migration(type, state, step)) == word
    assert status.in_progress(migration(type, state, step))


@pytest.mark.parametrize(
    "type, state, more, word",
    [
        ("live-migration", "done", {}, "completed"),
        ("live-migration", "failed", {"error": FAILURE}, "failed"),
        ("live-migration", "cancelled", {"error": CANCEL}, "cancelled"),
        ("evacuation", "done", {}, "done"),
        ("evacuation", "done", {"outcome": "cleaned"}, "completed"),
        ("evacuation", "failed", {"error": FAILURE}, "failed"),
        # The cleanup after a failed evacuation sets the outcome, too.
        ("evacuation", "failed", {"error": FAILURE, "outcome": "cleaned"}, "failed"),
        *(
            (type, state, more, word)
            for type in ("resize", "migration")
            for state, more, word in (
                ("done", {}, "finished"),
                ("done", {"ending": "confirm_resize"}, "confirming"),
                ("done", {"outcome": "confirmed"}, "confirmed"),
                ("done", {"ending": "revert_resize"}, "reverting"),
                ("done", {"outcome": "reverted"}, "reverted"),
                # A later resize of the server is being confirmed.
                ("done", {"outcome": "confirmed", "ending": "revert_resize"}, "confirmed"),
                ("failed", {"error": FAILURE}, "error"),
                ("cancelled", {"error": CANCEL}, "cancelled"),
            )
        ),
    ],
)
def test_final_statuses(type: str, state: str, more: dict[str, Any], word: str) -> None:
    assert status.status(migration(type, state, "hand over", **more)) == word
    assert not status.in_progress(migration(type, state, "hand over", **more))


@pytest.mark.parametrize("type", ["live-migration", "resize", "migration", "evacuation"])
def test_undoing_a_failure_is_error(type: str) -> None:
    undoing = migration(type, "undoing", "move ports", error=FAILURE)
    assert status.status(undoing) == "error"
    assert not status.in_progress(undoing)
    assert status.reason(undoing) == "No valid host was found"


def test_retry_on_another_host_is_no_error() -> None:
    back = migration("evacuation", "undoing", "build guest", error=FAILURE, undo_to="choose host")
    assert status.status(back) == "pre-migrating"
    assert status.in_progress(back)
    assert status.reason(back) is None


def test_cancelled_migration_is_in_progress_until_it_is_undone() -> None:
    undoing = migration("live-migration", "undoing", "migrate guest", error=CANCEL)
    assert status.status(undoing) == "running"
    assert status.in_progress(undoing)


def test_unknown_step_has_a_status() -> None:
    assert status.status(migration("live-migration", "running", "polish guest")) == "queued"


def test_every_step_of_every_move_has_a_status() -> None:
    moves = [kind for kind in all_kinds() if issubclass(kind, Move)]
    assert {kind.kind for kind in moves} == TYPE_OF_KIND.keys()
    missing = {
        (kind.kind, step.name)
        for kind in moves
        for step in kind.table().steps
        if step.name not in status.STATUS_NAMES[TYPE_OF_KIND[kind.kind]].steps
    }
    assert not missing
