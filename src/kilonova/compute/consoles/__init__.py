"""Consoles of servers: what they have written, and links to their screens."""
