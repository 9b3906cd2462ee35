"""Access to a public flavor cannot be added: 409."""

from kilonova.compute.flavors.access import PUBLIC_REFUSED
from kilonova.http.versions import Microversion, behaviour

version = Microversion("2.7", __doc__, [behaviour(PUBLIC_REFUSED)])
