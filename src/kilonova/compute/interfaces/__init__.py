"""Network interfaces of servers."""
