"""Servers: routes in `api` and `actions/`, rows in `model`, the state table in `states`."""
