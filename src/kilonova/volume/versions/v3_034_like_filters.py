"""Lists are filtered by a part of a text, by a key that ends in `~`."""

from kilonova.http.versions import Microversion, behaviour
from kilonova.volume.filters import LIKE

version = Microversion("3.34", __doc__, [behaviour(LIKE)])
