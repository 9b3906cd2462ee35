"""Lists tell how many entries there are on all pages, when `with_count` is in the query."""

from kilonova.http.versions import Microversion, behaviour
from kilonova.volume.filters import COUNTED

version = Microversion("3.45", __doc__, [behaviour(COUNTED)])
