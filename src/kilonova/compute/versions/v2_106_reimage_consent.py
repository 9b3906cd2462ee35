"""Reserved: the rebuild of a volume-backed server asks for explicit consent before it destroys the volume's content."""

from kilonova.http.versions import Microversion

version = Microversion("2.106", __doc__, [])
