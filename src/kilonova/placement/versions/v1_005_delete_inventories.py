"""All inventories of a provider can be deleted at once."""

from kilonova.http.versions import Microversion, route
from kilonova.placement.rest.inventories import ALL_PATH

version = Microversion("1.5", __doc__, [route("DELETE", ALL_PATH).begins(status_below=405)])
