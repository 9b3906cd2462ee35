"""Aggregates that providers must not belong to stand in `member_of` behind an exclamation mark."""

from kilonova.http.versions import Microversion, behaviour
from kilonova.placement.candidates.query import FORBIDDEN_AGGREGATES

version = Microversion("1.32", __doc__, [behaviour(FORBIDDEN_AGGREGATES)])
