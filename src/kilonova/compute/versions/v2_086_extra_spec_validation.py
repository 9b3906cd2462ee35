"""Extra specs in known namespaces must have known keys and valid values."""

from kilonova.compute.flavors.extra_specs import VALIDATED
from kilonova.http.versions import Microversion

version = Microversion("2.86", __doc__, [VALIDATED])
