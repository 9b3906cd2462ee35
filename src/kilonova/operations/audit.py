"""Records the end of operations in the audit log. The request id links it to the request that began the operation."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from kilonova.operations.states import DONE

if TYPE_CHECKING:
    from kilonova.operations.definition import Operation
    from kilonova.operations.row import OperationRow
    from kilonova.telemetry.audit import AuditLog

_HOST = socket.gethostname()


def record(audit: AuditLog, op: Operation, row: OperationRow) -> None:
    """Record the operation, if a user's request began it."""
    if row.user_id is None or row.request_id is None:
        return
    audit.write(
        {
            "action": f"finish/{row.kind}",
            "outcome": "success" if row.state == DONE else "failure",
            "initiator": {"id": row.user_id},
            "target": {**_target(op, row), "project_id": row.project_id},
            "observer": {"type": f"service/{op.lane or 'compute'}", "host": _HOST},
            "reason": {"text": row.state},
            "request_id": row.request_id,
            "operation_id": row.id,
        }
    )


def _target(op: Operation, row: OperationRow) -> dict[str, Any]:
    if row.server_id is not None:
        return {"type": "compute/servers", "id": row.server_id}
    for noun in ("volume", "snapshot"):
        if (found := getattr(op.params, f"{noun}_id", None)) is not None:
            return {"type": f"volume/{noun}s", "id": found}
    if (share_id := getattr(op.params, "share_id", None)) is not None:
        return {"type": "share/shares", "id": share_id}
    return {"type": "compute/operations", "id": row.id}
