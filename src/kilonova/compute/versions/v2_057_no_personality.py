"""Files are no longer injected into servers, so their quotas and limits end; a rebuild can change the user data."""

from kilonova.compute.quotas.schemas import LIMIT, OLD_RESOURCES
from kilonova.http import col
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import STRING, closed_object
from kilonova.http.versions import Microversion, RequestBody, action, request, view

INTEGER = {"type": "integer"}
SET, CLASS = "PUT /os-quota-sets/{project_id}", "PUT /os-quota-class-sets/{name}"
QUOTA_VIEWS = ("quota set", "new quota set", "quota detail", "quota class", "new quota class")

FILES = {"type": "array", "items": closed_object({"path": STRING, "contents": {**STRING, "format": "base64"}})}


def refuse_files(body: RequestBody) -> RequestBody:
    if body["rebuild"].pop("personality", None):
        raise BadRequest("personality: file injection is not supported.")
    return body


version = Microversion(
    "2.57",
    __doc__,
    [
        action("rebuild").loses("personality", schema=FILES, upgrade=refuse_files),
        action("rebuild").gains("user_data"),
        view("server rebuild").gains("user_data"),
        *(request(SET).loses(f"quota_set.{name}", schema=LIMIT) for name in OLD_RESOURCES),
        *(request(CLASS).loses(f"quota_class_set.{name}", schema=LIMIT) for name in OLD_RESOURCES),
        *(view(*QUOTA_VIEWS).loses(name, value=col(name).value) for name in OLD_RESOURCES),
        view("limits").loses("maxPersonality", value=col("injected_files").value, schema=INTEGER),
        view("limits").loses("maxPersonalitySize", value=col("injected_file_content_bytes").value, schema=INTEGER),
    ],
)
