"""The HTTP core that every service of Kilonova stands on."""

from kilonova.http.api import Api, Route, multi
from kilonova.http.app import App
from kilonova.http.context import Answer, Context
from kilonova.http.views import Field, View, col

__all__ = ["Answer", "Api", "App", "Context", "Field", "Route", "View", "col", "multi"]
