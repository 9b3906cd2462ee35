"""Compute's durable operations, one file each. Importing this package registers them all."""

from kilonova.compute.operations import boot, delete, images, leftovers, reboot, start, stop

__all__ = ["boot", "delete", "images", "leftovers", "reboot", "start", "stop"]
