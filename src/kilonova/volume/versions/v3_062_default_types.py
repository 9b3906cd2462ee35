"""Projects can have their own default type."""

from kilonova.http.versions import Microversion, route
from kilonova.volume.types.defaults import PATH

version = Microversion(
    "3.62",
    __doc__,
    [
        route("GET", "/default-types").begins(),
        route("GET", PATH).begins(),
        route("PUT", PATH).begins(),
        route("DELETE", PATH).begins(),
    ],
)
