"""Access to a public flavor cannot be added: 409."""

from kilonova.compute.flavors.access import PUBLIC_REFUSED
from kilonova.http.versions import Microversion

version = Microversion("2.7", __doc__, [PUBLIC_REFUSED])
