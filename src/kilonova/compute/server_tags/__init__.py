"""Tags of servers."""
