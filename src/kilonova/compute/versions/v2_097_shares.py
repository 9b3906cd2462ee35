"""File shares of the share service are attached to servers. A server with shares cannot be rebuilt, resized, migrated,
evacuated, shelved or suspended.
"""

from kilonova.compute.server_shares.api import SHARE, SHARES
from kilonova.http.versions import Microversion, route

version = Microversion(
    "2.97",
    __doc__,
    [
        *(route(method, SHARES).begins() for method in ("GET", "POST")),
        *(route(method, SHARE).begins() for method in ("GET", "DELETE")),
    ],
)
