"""Migrations: moves of servers between hosts, as a view of the operations that move them."""
