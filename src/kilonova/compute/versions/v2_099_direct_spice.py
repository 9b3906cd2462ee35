"""Consoles can be requested as SPICE without HTML5; the console of a token is shown with its TLS port."""

from kilonova.compute.consoles.api import CONSOLES, TOKEN
from kilonova.compute.consoles.schemas import types
from kilonova.http.versions import Microversion, query, request, view

version = Microversion(
    "2.99",
    __doc__,
    [
        request(f"POST {CONSOLES}").changes("remote_console.type", before=types("spice-direct"), required_before=True),
        view("console access").gains("tls_port"),
        query(f"GET {TOKEN}").closes(),
    ],
)
