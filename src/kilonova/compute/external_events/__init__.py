"""Events of servers that other services send."""
