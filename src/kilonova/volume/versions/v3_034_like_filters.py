"""Lists can be filtered by a part of a text, with a key that ends in `~`."""

from kilonova.http.versions import Microversion
from kilonova.volume.filters import LIKE

version = Microversion("3.34", __doc__, [LIKE])
