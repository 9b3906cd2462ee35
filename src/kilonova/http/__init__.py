"""HTTP framework shared by all of Kilonova's APIs."""

from kilonova.http.api import Api, Route, multi, repeatable
from kilonova.http.app import App
from kilonova.http.context import Context, Response
from kilonova.http.views import Field, View, attribute, col

__all__ = ["Api", "App", "Context", "Field", "Response", "Route", "View", "attribute", "col", "multi", "repeatable"]
