"""Providers form trees. A parent can be set on creation, or once on an existing root; trees can be listed."""

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
