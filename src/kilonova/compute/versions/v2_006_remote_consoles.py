"""One route creates URLs for consoles of all types, in place of an action for each protocol."""

from kilonova.compute.consoles.api import CONSOLES
from kilonova.http.versions import Microversion, action, route

OLD = ("os-getVNCConsole", "os-getSPICEConsole", "os-getRDPConsole", "os-getSerialConsole")

version = Microversion("2.6", __doc__, [route("POST", CONSOLES).begins(), *(action(name).ends() for name in OLD)])
