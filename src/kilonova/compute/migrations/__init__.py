"""Migrations: where servers were moved from and to, as a view of the operations that moved them."""
