"""Answers with a body, and those that confirm a trait or a class, say when it was last changed."""

from kilonova.http.versions import Microversion, behaviour
from kilonova.placement.api import DATED

version = Microversion("1.15", __doc__, [behaviour(DATED)])
