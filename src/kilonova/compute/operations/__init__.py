"""Compute's durable operations, one file each. Importing this package registers them all."""

from kilonova.compute.operations import boot, delete, reboot, silence, start, stop

__all__ = ["boot", "delete", "reboot", "silence", "start", "stop"]
