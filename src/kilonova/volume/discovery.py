"""The version documents and the OpenAPI document."""

from __future__ import annotations

from kilonova.http.version_documents import declare_documents
from kilonova.volume.api import api

declare_documents(api, media_type="application/vnd.openstack.volume+json;version=3", updated="2023-08-31T00:00:00Z")
