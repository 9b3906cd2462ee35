"""Servers that boot from volumes can be rescued, with an image that says where its disk shall be."""

from kilonova.compute.servers.rescuing import OF_VOLUMES
from kilonova.http.versions import Microversion, behaviour

version = Microversion("2.87", __doc__, [behaviour(OF_VOLUMES)])
