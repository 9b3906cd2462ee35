"""Filters that are not for the caller are refused. They were ignored before."""

from kilonova.http.versions import Microversion
from kilonova.volume.filters import STRICT

version = Microversion("3.31", __doc__, [STRICT])
