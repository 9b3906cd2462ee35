"""Bodies of consoles."""

from __future__ import annotations

from kilonova.http.pieces import Schema, closed

OUTPUT: Schema = closed(
    {
        "length": {
            "type": ["integer", "string", "null"],
            "pattern": "^-?[0-9]{1,9}$",
            "minimum": -1,
            "maximum": 0x7FFFFFFF,
        }
    }
)

# By protocol, in the order in which the versions brought them.
TYPES = {
    "vnc": ("novnc", "xvpvnc"),
    "spice": ("spice-html5", "spice-direct"),
    "rdp": ("rdp-html5",),
    "serial": ("serial",),
    "mks": ("webmks",),
}


def one_of(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def protocols(*without: str) -> Schema:
    return one_of(*(name for name in TYPES if name not in without))


def types(*without: str) -> Schema:
    return one_of(*(name for names in TYPES.values() for name in names if name not in without))


def old(protocol: str) -> Schema:
    """Of the actions that there was one of for each protocol."""
    return closed({"type": one_of(*(name for name in TYPES[protocol] if name != "spice-direct"))}, ["type"])


CREATE: Schema = closed(
    {"remote_console": closed({"protocol": protocols(), "type": types()}, ["protocol", "type"])}, ["remote_console"]
)
