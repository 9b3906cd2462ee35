"""Random UUIDs, the identifiers of all resources."""

from __future__ import annotations

import re
import uuid

_UUID = re.compile(r"[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")


def new_id() -> str:
    return str(uuid.uuid4())


def is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None
