"""Compute's durable operations, one file each. Importing this package registers them all."""

from kilonova.compute.operations import (
    boot,
    delete,
    evacuate,
    images,
    leftovers,
    offload,
    reboot,
    shelve,
    start,
    stop,
    unshelve,
)

__all__ = [
    "boot",
    "delete",
    "evacuate",
    "images",
    "leftovers",
    "offload",
    "reboot",
    "shelve",
    "start",
    "stop",
    "unshelve",
]
