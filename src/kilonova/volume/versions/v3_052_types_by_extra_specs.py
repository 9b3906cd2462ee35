"""Types can be filtered by extra specs."""

from kilonova.http.versions import Microversion
from kilonova.volume.types.api import BY_SPECS

version = Microversion("3.52", __doc__, [BY_SPECS])
