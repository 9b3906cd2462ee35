"""The kinds of the share service's operations. The database stores them."""

from __future__ import annotations

CREATE_SHARE = "create_share"
DELETE_SHARE = "delete_share"
