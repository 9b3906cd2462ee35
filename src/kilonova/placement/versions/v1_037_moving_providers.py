"""A provider can get another parent, or become a root, with its descendants."""

from kilonova.http.versions import Microversion
from kilonova.placement.rest.providers import REPARENTING

version = Microversion("1.37", __doc__, [REPARENTING])
