"""What hypervisors see of servers."""
