"""Messages are filtered, sorted and paged."""

from kilonova.http.versions import Microversion
from kilonova.volume.messages.api import PAGED

version = Microversion("3.5", __doc__, [PAGED])
