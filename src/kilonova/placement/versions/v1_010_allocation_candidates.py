"""Ways in which resources could be allocated can be listed, with what the providers in them have."""

from kilonova.http.versions import Microversion, route

version = Microversion("1.10", __doc__, [route("GET", "/allocation_candidates").begins()])
