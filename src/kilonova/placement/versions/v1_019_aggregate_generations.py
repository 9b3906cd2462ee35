"""Aggregates are shown and replaced with the provider's generation, which moves with them."""

from kilonova.http.versions import Microversion, behaviour, request, view
from kilonova.placement.rest.aggregates import GUARDED, LIST, PATH, unguarded

version = Microversion(
    "1.19",
    __doc__,
    [
        request(f"PUT {PATH}").changes("", before=LIST, upgrade=unguarded),
        view("aggregates").gains("resource_provider_generation"),
        behaviour(GUARDED),
    ],
)
