"""Messages between the control plane and agents, in msgpack. Both sides may be of different releases.

A reader ignores unknown fields, and new fields have defaults. An agent refuses an unknown verb by name.
"""

from __future__ import annotations

from kilonova.hosts.messages.base import VERSION, Message
from kilonova.hosts.messages.facts import HostFacts, Inventory, NestedProvider, Report, SharingProvider
from kilonova.hosts.messages.guests import (
    Disk,
    File,
    Flavor,
    Guest,
    GuestState,
    Image,
    Key,
    LocalDisk,
    MigrationState,
    MoveTicket,
    Nic,
    Power,
    Share,
    ShareKind,
    Transfer,
)
from kilonova.hosts.messages.networks import FirewallRule, NetworkPlan, WiredNetwork, WiredPort, WiredSubnet
from kilonova.hosts.messages.wire import (
    Command,
    ErrorKind,
    HostError,
    Reply,
    UnreadableCommand,
    decode_answer,
    decode_command,
    decode_guest,
    decode_reply,
    decode_report,
    encode,
    failure,
    success,
)

__all__ = [
    "VERSION",
    "Command",
    "Disk",
    "ErrorKind",
    "File",
    "FirewallRule",
    "Flavor",
    "Guest",
    "GuestState",
    "HostError",
    "HostFacts",
    "Image",
    "Inventory",
    "Key",
    "LocalDisk",
    "Message",
    "MigrationState",
    "MoveTicket",
    "NestedProvider",
    "NetworkPlan",
    "Nic",
    "Power",
    "Reply",
    "Report",
    "Share",
    "ShareKind",
    "SharingProvider",
    "Transfer",
    "UnreadableCommand",
    "WiredNetwork",
    "WiredPort",
    "WiredSubnet",
    "decode_answer",
    "decode_command",
    "decode_guest",
    "decode_reply",
    "decode_report",
    "encode",
    "failure",
    "success",
]
