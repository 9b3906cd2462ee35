"""All inventories of a provider can be removed at once."""

from kilonova.http.versions import Microversion, route
from kilonova.placement.rest.inventories import ALL

version = Microversion("1.5", __doc__, [route("DELETE", ALL).begins(status_below=405)])
