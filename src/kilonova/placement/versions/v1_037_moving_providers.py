"""A provider can be put below another parent, or made a root, with all that is below it."""

from kilonova.http.versions import Microversion, behaviour
from kilonova.placement.rest.providers import MOVABLE

version = Microversion("1.37", __doc__, [behaviour(MOVABLE)])
