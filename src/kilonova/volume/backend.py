"""The one back end of the built-in service, files in the data directory, as operators see it."""

from __future__ import annotations

# Host, back end and pool, as the API joins them.
HOST = "kilonova"
BACKEND = "kilonova@files"
POOL = "kilonova@files#files"
