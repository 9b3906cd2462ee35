"""Files are no longer injected into servers, so their quotas and limits end; a rebuild can change the user data."""

from kilonova.compute.quotas.schemas import LIMIT, OLD_RESOURCES
from kilonova.compute.servers import personality
from kilonova.http import col
from kilonova.http.versions import Microversion, action, request, view

INTEGER = {"type": "integer"}
SET, CLASS = "PUT /os-quota-sets/{project_id}", "PUT /os-quota-class-sets/{name}"
QUOTA_VIEWS = ("quota set", "new quota set", "quota detail", "quota class", "new quota class")

version = Microversion(
    "2.57",
    __doc__,
    [
        request("POST /servers").loses("server.personality", schema=personality.SCHEMA),
        action("rebuild").loses("personality", schema=personality.SCHEMA),
        action("rebuild").gains("user_data"),
        view("server rebuild").gains("user_data"),
        *(request(SET).loses(f"quota_set.{name}", schema=LIMIT) for name in OLD_RESOURCES),
        *(request(CLASS).loses(f"quota_class_set.{name}", schema=LIMIT) for name in OLD_RESOURCES),
        *(view(*QUOTA_VIEWS).loses(name, value=col(name).value) for name in OLD_RESOURCES),
        view("limits").loses("maxPersonality", value=col("injected_files").value, schema=INTEGER),
        view("limits").loses("maxPersonalitySize", value=col("injected_file_content_bytes").value, schema=INTEGER),
    ],
)
