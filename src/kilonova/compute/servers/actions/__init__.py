"""Actions on a server, one file per verb: `POST /servers/{server_id}/action`.

Importing this package declares them all.
"""

from kilonova.module_discovery import import_all

import_all(__name__, __path__)
