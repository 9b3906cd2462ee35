"""The resources of the Placement API: one module each, with its routes, schemas, views and SQL."""
