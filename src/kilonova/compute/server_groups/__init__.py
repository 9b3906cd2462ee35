"""Server groups: servers that want to be together on one host, or apart."""
