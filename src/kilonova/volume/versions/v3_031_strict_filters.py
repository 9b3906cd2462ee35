"""Filters that are not offered to the caller are refused; they were passed over before."""

from kilonova.http.versions import Microversion, behaviour
from kilonova.volume.filters import STRICT

version = Microversion("3.31", __doc__, [behaviour(STRICT)])
