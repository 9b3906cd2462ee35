"""Aggregates are shown and replaced with the provider's generation, which changes with them."""

from kilonova.http.versions import Microversion, request, view
from kilonova.placement.rest.aggregates import LIST, PATH, WITH_GENERATION, without_generation

version = Microversion(
    "1.19",
    __doc__,
    [
        request(f"PUT {PATH}").changes("", before=LIST, upgrade=without_generation),
        view("aggregates").gains("resource_provider_generation"),
        WITH_GENERATION,
    ],
)
