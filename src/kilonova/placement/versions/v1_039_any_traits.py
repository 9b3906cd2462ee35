"""`required` can be repeated, and can require one of several traits."""

from kilonova.http.versions import Microversion
from kilonova.placement.candidates.query import ANY_TRAITS

version = Microversion("1.39", __doc__, [ANY_TRAITS])
