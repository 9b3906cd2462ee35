"""Lists show the number of entries on all pages, with `with_count` in the query."""

from kilonova.http.versions import Microversion
from kilonova.volume.filters import COUNTED

version = Microversion("3.45", __doc__, [COUNTED])
