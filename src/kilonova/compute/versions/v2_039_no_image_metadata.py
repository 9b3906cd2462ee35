"""The metadata of images is asked of the image service; its limit leaves with it."""

from kilonova.http.versions import Microversion, view

version = Microversion(
    "2.39",
    __doc__,
    [view("limits").loses("maxImageMeta", value=lambda row, ctx: row["metadata_items"], schema={"type": "integer"})],
)
