"""The base of all messages, and the protocol version."""

from __future__ import annotations

import msgspec

# 1: the first. 2: nested and sharing providers, boot time of hosts. 3: moves of guests. 4: volumes.
# 5: networks, consoles, and other features of real guests. 6: incarnations of the database.
VERSION = 6


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every struct on the wire."""
