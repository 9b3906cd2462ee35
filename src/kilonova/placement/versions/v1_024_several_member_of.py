"""`member_of` can be repeated; all repetitions must match."""

from kilonova.http.versions import Microversion
from kilonova.placement.candidates.query import SEVERAL_AGGREGATES

version = Microversion("1.24", __doc__, [SEVERAL_AGGREGATES])
