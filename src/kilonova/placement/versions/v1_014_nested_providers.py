"""Providers stand in trees: a parent can be given to a new provider, or once to an old one; trees can be listed."""

from kilonova.http.versions import Microversion, query, request, view

version = Microversion(
    "1.14",
    __doc__,
    [
        view("provider").gains("parent_provider_uuid", "root_provider_uuid"),
        request("POST /resource_providers").gains("parent_provider_uuid"),
        request("PUT /resource_providers/{uuid}").gains("parent_provider_uuid"),
        query("GET /resource_providers").gains("in_tree"),
    ],
)
