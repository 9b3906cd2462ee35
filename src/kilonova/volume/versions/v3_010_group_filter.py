"""Volumes are listed by their group, of which there is none here."""

from kilonova.http.versions import Microversion, behaviour
from kilonova.volume.filters import BY_GROUP

version = Microversion("3.10", __doc__, [behaviour(BY_GROUP)])
