"""A new server can request a `host` or `hypervisor_hostname`, which the scheduler verifies."""

from kilonova.http.versions import Microversion, request

version = Microversion(
    "2.74",
    __doc__,
    [
        request("POST /servers").gains("server.host"),
        request("POST /servers").gains("server.hypervisor_hostname"),
    ],
)
