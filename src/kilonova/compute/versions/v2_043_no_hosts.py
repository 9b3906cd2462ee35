"""The routes of hosts end; services and hypervisors replace them."""

from kilonova.http.versions import Microversion, route

version = Microversion(
    "2.43",
    __doc__,
    [
        route("GET", "/os-hosts").ends(),
        route("GET", "/os-hosts/{host}").ends(),
        route("PUT", "/os-hosts/{host}").ends(),
        route("GET", "/os-hosts/{host}/startup").ends(),
        route("GET", "/os-hosts/{host}/shutdown").ends(),
        route("GET", "/os-hosts/{host}/reboot").ends(),
    ],
)
