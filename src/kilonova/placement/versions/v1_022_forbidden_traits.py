"""Traits that providers must not have stand in `required` behind an exclamation mark."""

from kilonova.http.versions import Microversion, behaviour
from kilonova.placement.candidates.query import FORBIDDEN_TRAITS

version = Microversion("1.22", __doc__, [behaviour(FORBIDDEN_TRAITS)])
