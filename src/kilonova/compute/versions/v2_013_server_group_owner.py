"""Server groups show their project and user."""

from kilonova.http.versions import Microversion, view

version = Microversion("2.13", __doc__, [view("server group").gains("project_id", "user_id")])
