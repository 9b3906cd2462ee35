"""A new server may be asked to go to a `host` or `hypervisor_hostname`, through the scheduler."""

from kilonova.http.versions import Microversion, request

version = Microversion(
    "2.74",
    __doc__,
    [
        request("POST /servers").gains("server.host"),
        request("POST /servers").gains("server.hypervisor_hostname"),
    ],
)
