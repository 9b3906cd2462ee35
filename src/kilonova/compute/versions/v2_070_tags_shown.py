"""The volumes and interfaces of a server are shown with their tags."""

from kilonova.http.versions import Microversion, view

version = Microversion("2.70", __doc__, [view("volume attachment", "new volume attachment", "interface").gains("tag")])
