"""`required` may ask for one of several traits, and be repeated."""

from kilonova.http.versions import Microversion, behaviour
from kilonova.placement.candidates.query import ANY_TRAITS

version = Microversion("1.39", __doc__, [behaviour(ANY_TRAITS)])
