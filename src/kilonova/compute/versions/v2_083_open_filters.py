"""All users may filter servers by zone, config drive, key, times, states and user."""

from kilonova.http.versions import Microversion, behaviour

version = Microversion("2.83", __doc__, [behaviour("everybody filters servers by their states and times")])
