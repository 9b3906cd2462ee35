"""An exclamation mark in `required` forbids a trait."""

from kilonova.http.versions import Microversion
from kilonova.placement.candidates.query import FORBIDDEN_TRAITS

version = Microversion("1.22", __doc__, [FORBIDDEN_TRAITS])
