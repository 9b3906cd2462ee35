"""Lists of key pairs are paged."""

from kilonova.compute.keypairs.api import PAGED
from kilonova.http.versions import Microversion, query

version = Microversion("2.35", __doc__, [query("GET /os-keypairs").gains("limit", "marker"), PAGED])
