"""Views of shares."""

from __future__ import annotations

from kilonova import clock
from kilonova.http import Context, Field, View, attribute
from kilonova.share import types
from kilonova.share.api import api
from kilonova.share.services import BACK_END
from kilonova.share.shares import model
from kilonova.share.shares.model import Share

TEXT = {"type": "string"}
NULLABLE = {"type": ["string", "null"]}
_NULL = {"type": "null"}
_FALSE = Field(lambda share, ctx: False, {"type": "boolean"})
_NONE = Field(lambda share, ctx: None, _NULL)
_HOST = "share:list_by_host"


def _links(share: Share, ctx: Context) -> list[dict[str, str]]:
    return ctx.links(f"/shares/{share.id}")


_BRIEF = {
    "id": attribute("id", TEXT),
    "name": attribute("name", NULLABLE),
    "links": Field(_links, {"type": "array"}),
}

api.view(View("share brief", _BRIEF))
api.view(
    View(
        "share",
        {
            **_BRIEF,
            "description": attribute("description", NULLABLE),
            "size": attribute("size", {"type": "integer"}),
            "status": attribute("status", TEXT),
            "share_proto": Field(lambda share, ctx: model.PROTOCOL, TEXT),
            "share_type": Field(lambda share, ctx: types.DEFAULT_ID, TEXT),
            "share_type_name": Field(lambda share, ctx: types.DEFAULT_NAME, TEXT),
            "volume_type": Field(lambda share, ctx: types.DEFAULT_NAME, TEXT),
            "availability_zone": attribute("zone", TEXT),
            "metadata": attribute("metadata", {"type": "object"}),
            "project_id": attribute("project_id", TEXT),
            "user_id": attribute("user_id", TEXT),
            "created_at": Field(lambda share, ctx: clock.iso_micro(share.created_at), TEXT),
            "progress": Field(lambda share, ctx: "100%" if share.status == model.AVAILABLE else "0%", TEXT),
            "access_rules_status": Field(lambda share, ctx: "active", TEXT),
            "is_public": _FALSE,
            "is_soft_deleted": _FALSE,
            "scheduled_to_be_deleted_at": _NONE,
            "has_replicas": _FALSE,
            "replication_type": _NONE,
            "snapshot_id": _NONE,
            "snapshot_support": _FALSE,
            "create_share_from_snapshot_support": _FALSE,
            "revert_to_snapshot_support": _FALSE,
            "mount_snapshot_support": _FALSE,
            "share_network_id": _NONE,
            "share_group_id": _NONE,
            "source_share_group_snapshot_member_id": _NONE,
            "task_state": _NONE,
            "host": Field(lambda share, ctx: BACK_END, TEXT, _HOST),
            "share_server_id": Field(lambda share, ctx: None, _NULL, _HOST),
        },
    )
)
