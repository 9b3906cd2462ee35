"""All users may filter servers by `ip6`."""

from kilonova.http.versions import Microversion, behaviour

version = Microversion("2.5", __doc__, [behaviour("everybody filters servers by ip6")])
