"""One spelling for kinds of operations, and plainer names for some steps. Unfinished operations continue under them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

KINDS = {
    "addFixedIp": "add_fixed_ip",
    "addSecurityGroup": "add_security_group",
    "change password": "change_password",
    "clear guest": "clean_up_guest",
    "clear slot": "clean_up_slot",
    "create backup": "create_backup",
    "create image": "create_image",
    "create volume image": "create_volume_image",
    "delete port": "delete_port",
    "delete volume": "delete_volume",
    "delete volume snapshot": "delete_volume_snapshot",
    "drop image": "delete_image",
    "drop volume content": "delete_volume_content",
    "extend volume": "grow_volume",
    "make volume": "create_volume",
    "make volume snapshot": "create_volume_snapshot",
    "park guest again": "park_guest",
    "reimage volume": "reimage_volume",
    "removeFixedIp": "remove_fixed_ip",
    "removeSecurityGroup": "remove_security_group",
    "reset state": "reset_state",
    "restore disk": "restore_disk",
    "restore guest": "restore_guest",
    "restore nic": "restore_interface",
    "revert volume": "revert_volume",
    "soft delete": "soft_delete",
    "tell guest": "update_metadata",
    "tell guest later": "deferred_update_metadata",
    "tell of volume": "notify_compute",
    "trigger crash dump": "trigger_crash_dump",
    "upload volume": "upload_volume",
}
# By the new kind: the former and the new name of a step.
STEPS = {
    "add_fixed_ip": {"look at port": "read ports", "change port": "change ports"},
    "remove_fixed_ip": {"look at port": "read ports", "change port": "change ports"},
    "add_security_group": {"look at ports": "read ports"},
    "remove_security_group": {"look at ports": "read ports"},
    "create_backup": {"look for old backups": "find old backups"},
    "deferred_update_metadata": {"tell guest": "update metadata"},
    "live_migrate": {"take turn": "wait for slot"},
    "notify_compute": {"tell": "notify"},
    "park_guest": {"park guest again": "park guest"},
    "restore_interface": {"restore nic": "restore interface"},
    "update_metadata": {"tell guest": "update metadata"},
}
_KIND = sa.text("UPDATE operations SET kind = :new WHERE kind = :old")
# `plan` is a JSON list of step names, and `results` a JSON object by step name.
_STEP = sa.text("""
UPDATE operations SET
    step = CASE WHEN step = :old THEN :new ELSE step END,
    undo_to = CASE WHEN undo_to = :old THEN :new ELSE undo_to END,
    plan = REPLACE(plan, :old_word, :new_word),
    results = REPLACE(results, :old_key, :new_key)
WHERE kind = :kind
""")
_EXECUTED = sa.text("""
UPDATE operation_steps SET name = :new
WHERE name = :old AND operation_id IN (SELECT id FROM operations WHERE kind = :kind)
""")
_WAIT = sa.text("""
UPDATE operation_waits SET name = :new
WHERE name = :old AND operation_id IN (SELECT id FROM operations WHERE kind = :kind)
""")
_KEYS = "UPDATE {} SET key = 'live-migration slot of ' || SUBSTR(key, 9) WHERE SUBSTR(key, 1, 8) = 'turn of '"


def upgrade() -> None:
    for old, new in KINDS.items():
        op.execute(_KIND.bindparams(old=old, new=new))
    for kind, names in STEPS.items():
        for old, new in names.items():
            words = {"old_word": f'"{old}"', "new_word": f'"{new}"', "old_key": f'"{old}":', "new_key": f'"{new}":'}
            op.execute(_STEP.bindparams(kind=kind, old=old, new=new, **words))
            op.execute(_EXECUTED.bindparams(kind=kind, old=old, new=new))
            op.execute(_WAIT.bindparams(kind=kind, old=old, new=new))
    for table in ("operation_waits", "operation_events"):
        op.execute(_KEYS.format(table))
