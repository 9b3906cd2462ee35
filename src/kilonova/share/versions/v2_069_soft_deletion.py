"""Shares show whether they are in the recycle bin. This service has none."""

from kilonova.http.versions import Microversion, query, view

version = Microversion(
    "2.69",
    __doc__,
    [
        view("share").gains("is_soft_deleted", "scheduled_to_be_deleted_at"),
        *(query(f"GET /shares{below}").gains("is_soft_deleted") for below in ("", "/detail")),
    ],
)
