"""Compute's durable operations, one file each; steps that they share are in `steps/`.

Importing this package registers all operations.
"""

from kilonova.module_discovery import import_all

import_all(__name__, __path__)
