"""Image: default rules under the names of the public Image API."""

from __future__ import annotations

from kilonova.policy.base import (
    ADMIN,
    ADMIN_PROJECT,
    MEMBER_OR_ADMIN,
    PROJECT_READER,
    READER_OR_ADMIN,
    SERVICE,
    SYSTEM_ADMIN,
    Rule,
    rules,
)
from kilonova.policy.checks import Match, Role

# Images of other projects that are visible: public, community, and shared with the project.
VISIBLE = Role("reader") & (
    Match("'community'", "%(visibility)s") | Match("'public'", "%(visibility)s") | Match("'shared'", "%(visibility)s")
)
MEMBER = Role("member") & Match("project_id", "%(member_id)s")

RULES: tuple[Rule, ...] = rules(
    "",
    ("add_image", MEMBER_OR_ADMIN, "Create an image."),
    ("get_image", ADMIN | PROJECT_READER | VISIBLE, "Show an image."),
    ("get_images", READER_OR_ADMIN, "List images."),
    ("modify_image", MEMBER_OR_ADMIN, "Change an image."),
    ("delete_image", MEMBER_OR_ADMIN, "Delete an image."),
    ("publicize_image", ADMIN, "Make an image public."),
    ("communitize_image", MEMBER_OR_ADMIN, "Make an image a community image."),
    ("download_image", ADMIN | PROJECT_READER | VISIBLE, "Download the data of an image."),
    ("upload_image", MEMBER_OR_ADMIN, "Upload the data of an image."),
    ("stage_image", MEMBER_OR_ADMIN, "Stage the data of an image for import."),
    ("import_image", MEMBER_OR_ADMIN, "Import the data of an image."),
    ("get_image_location", ADMIN | PROJECT_READER, "See the location of an image's data."),
    ("set_image_location", ADMIN, "Set the location of an image's data."),
    ("delete_image_location", ADMIN, "Delete the location of an image's data."),
    ("deactivate", MEMBER_OR_ADMIN, "Deactivate an image."),
    ("reactivate", MEMBER_OR_ADMIN, "Reactivate an image."),
    ("add_member", MEMBER_OR_ADMIN, "Share an image with a project."),
    ("get_member", READER_OR_ADMIN | MEMBER, "Show a project an image is shared with."),
    ("get_members", READER_OR_ADMIN | MEMBER, "List the projects an image is shared with."),
    ("modify_member", ADMIN | MEMBER, "Accept or reject an image shared with the own project."),
    ("delete_member", MEMBER_OR_ADMIN, "Stop sharing an image with a project."),
    ("get_task", ADMIN, "Show a task."),
    ("get_tasks", ADMIN, "List tasks."),
    ("copy_image", ADMIN, "Copy an image to other stores."),
    ("cache_image", ADMIN, "Put an image into the cache."),
    (
        "kilonova:images:choose_id",
        SERVICE | SYSTEM_ADMIN | (ADMIN & ADMIN_PROJECT),
        "Choose the id of a new image: services, and administrators with a system scope or of the project admin.",
    ),
)
