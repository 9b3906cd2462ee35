"""Files are no longer put into servers, so their quotas and limits go; user data can be changed by a rebuild."""

from typing import Any

from kilonova.compute.quotas.schemas import LIMIT, OLD_RESOURCES
from kilonova.http import col
from kilonova.http.errors import BadRequest
from kilonova.http.pieces import STRING, closed
from kilonova.http.versions import Microversion, action, request, view

WHOLE = {"type": "integer"}
SET, CLASS = "PUT /os-quota-sets/{project_id}", "PUT /os-quota-class-sets/{name}"
QUOTA_VIEWS = ("quota set", "new quota set", "quota detail", "quota class", "new quota class")

FILES = {"type": "array", "items": closed({"path": STRING, "contents": {**STRING, "format": "base64"}})}


def without_files(body: dict[str, Any]) -> dict[str, Any]:
    if body["rebuild"].pop("personality", None):
        raise BadRequest("personality: hosts here put no files into servers.")
    return body


version = Microversion(
    "2.57",
    __doc__,
    [
        action("rebuild").loses("personality", schema=FILES, upgrade=without_files),
        action("rebuild").gains("user_data"),
        view("server rebuild").gains("user_data"),
        *(request(SET).loses(f"quota_set.{name}", schema=LIMIT) for name in OLD_RESOURCES),
        *(request(CLASS).loses(f"quota_class_set.{name}", schema=LIMIT) for name in OLD_RESOURCES),
        *(view(*QUOTA_VIEWS).loses(name, value=col(name).value) for name in OLD_RESOURCES),
        view("limits").loses("maxPersonality", value=col("injected_files").value, schema=WHOLE),
        view("limits").loses("maxPersonalitySize", value=col("injected_file_content_bytes").value, schema=WHOLE),
    ],
)
