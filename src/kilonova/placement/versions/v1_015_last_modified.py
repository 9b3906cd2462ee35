"""Responses with a body, and those that confirm a trait or a class, have the header Last-Modified."""

from kilonova.http.versions import Microversion
from kilonova.placement.api import LAST_MODIFIED

version = Microversion("1.15", __doc__, [LAST_MODIFIED])
