"""The image service with all its routes: what a process mounts."""

from __future__ import annotations

from kilonova.image import data, documents, images, members
from kilonova.image.api import api

# Importing a module declares its routes.
DECLARED = (documents, images, data, members)
api.compile([])

__all__ = ["api"]
