"""The volumes of servers: attached, swapped, detached."""
