"""Console tokens of every type can be shown, not only those of RDP."""

from kilonova.compute.consoles.api import EVERY_TYPE
from kilonova.http.versions import Microversion

version = Microversion("2.31", __doc__, [EVERY_TYPE])
