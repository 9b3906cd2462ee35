"""The version documents and the OpenAPI document."""

from __future__ import annotations

from kilonova.http.version_documents import declare_documents
from kilonova.share.api import api

declare_documents(api, media_type="application/vnd.openstack.share+json;version=1", updated="2015-08-27T11:33:21Z")
