"""Instance actions: what was done to a server, as a view of its operations."""
