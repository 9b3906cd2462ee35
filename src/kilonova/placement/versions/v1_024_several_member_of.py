"""Several `member_of` in one query hold all together."""

from kilonova.http.versions import Microversion, behaviour
from kilonova.placement.candidates.query import SEVERAL_AGGREGATES

version = Microversion("1.24", __doc__, [behaviour(SEVERAL_AGGREGATES)])
