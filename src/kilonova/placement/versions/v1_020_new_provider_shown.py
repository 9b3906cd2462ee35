"""The answer to a new provider shows it, with status 200."""

from kilonova.http.versions import Microversion, answer, behaviour
from kilonova.placement.rest.providers import SHOWN

version = Microversion("1.20", __doc__, [answer("POST /resource_providers").status(before=201), behaviour(SHOWN)])
