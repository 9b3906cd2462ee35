"""What a project, or a user in it, uses can be asked."""

from kilonova.http.versions import Microversion, route

version = Microversion("1.9", __doc__, [route("GET", "/usages").begins()])
