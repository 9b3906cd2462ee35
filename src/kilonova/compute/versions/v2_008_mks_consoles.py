"""Console URLs can be created for the protocol `mks`."""

from kilonova.compute.consoles.api import CONSOLES
from kilonova.compute.consoles.schemas import protocols, types
from kilonova.http.versions import Microversion, request

version = Microversion(
    "2.8",
    __doc__,
    [
        request(f"POST {CONSOLES}").changes("remote_console.protocol", before=protocols("mks"), required_before=True),
        request(f"POST {CONSOLES}").changes(
            "remote_console.type", before=types("webmks", "spice-direct"), required_before=True
        ),
    ],
)
