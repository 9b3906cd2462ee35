"""The response to a create request shows the provider, with status 200."""

from kilonova.http.versions import Microversion, response
from kilonova.placement.rest.providers import RETURNS_PROVIDER

version = Microversion("1.20", __doc__, [response("POST /resource_providers").status(before=201), RETURNS_PROVIDER])
