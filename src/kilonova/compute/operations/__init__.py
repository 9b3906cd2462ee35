"""Compute's durable operations, one file each. Importing this package registers them all."""

from kilonova.compute.operations import (
    boot,
    confirm_resize,
    delete,
    evacuate,
    images,
    leftovers,
    live_migrate,
    offload,
    reboot,
    rebuild,
    resize,
    revert_resize,
    shelve,
    start,
    stop,
    unshelve,
)

__all__ = [
    "boot",
    "confirm_resize",
    "delete",
    "evacuate",
    "images",
    "leftovers",
    "live_migrate",
    "offload",
    "reboot",
    "rebuild",
    "resize",
    "revert_resize",
    "shelve",
    "start",
    "stop",
    "unshelve",
]
