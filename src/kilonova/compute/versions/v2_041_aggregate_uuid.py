"""Aggregates show their uuid, by which placement knows them."""

from kilonova.http.versions import Microversion, view

version = Microversion("2.41", __doc__, [view("aggregate", "new aggregate").gains("uuid")])
