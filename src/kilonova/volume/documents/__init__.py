"""The version documents of the volume service."""
