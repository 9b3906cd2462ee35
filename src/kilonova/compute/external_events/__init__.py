"""What other services have to tell of servers."""
