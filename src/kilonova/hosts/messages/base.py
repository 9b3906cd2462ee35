"""What every message has in common, and which release of the protocol this is."""

from __future__ import annotations

import msgspec

# 1: the beginning. 2: hosts tell of nested and sharing providers and of when they booted. 3: guests move. 4: volumes.
# 5: networks, consoles, and everything else that only real guests have.
VERSION = 5


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Every struct on the wire."""


# What a guest is
