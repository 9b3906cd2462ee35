"""File shares of servers: attach, list, detach."""
