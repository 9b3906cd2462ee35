"""An exclamation mark in `member_of` forbids aggregates."""

from kilonova.http.versions import Microversion
from kilonova.placement.candidates.query import FORBIDDEN_AGGREGATES

version = Microversion("1.32", __doc__, [FORBIDDEN_AGGREGATES])
