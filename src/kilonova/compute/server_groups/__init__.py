"""Server groups: affinity and anti-affinity of servers."""
