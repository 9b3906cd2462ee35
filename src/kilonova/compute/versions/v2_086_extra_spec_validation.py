"""Extra specs in the namespaces that are known must have known keys and possible values."""

from kilonova.compute.flavors.specs import VALIDATED
from kilonova.http.versions import Microversion, behaviour

version = Microversion("2.86", __doc__, [behaviour(VALIDATED)])
