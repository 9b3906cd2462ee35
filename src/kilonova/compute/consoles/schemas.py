"""Bodies of consoles."""

from __future__ import annotations

from kilonova.http.parameter_types import Schema, closed_object, request_body

OUTPUT: Schema = closed_object(
    {
        "length": {
            "type": ["integer", "string", "null"],
            "pattern": "^-?[0-9]{1,9}$",
            "minimum": -1,
            "maximum": 0x7FFFFFFF,
        }
    }
)

# Console types by protocol, in the order of the microversions that added them.
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


def legacy(protocol: str) -> Schema:
    """The body of an action before 2.6; there is one for each protocol."""
    return closed_object({"type": one_of(*(name for name in TYPES[protocol] if name != "spice-direct"))}, ["type"])


CREATE: Schema = request_body("remote_console", {"protocol": protocols(), "type": types()}, ["protocol", "type"])
