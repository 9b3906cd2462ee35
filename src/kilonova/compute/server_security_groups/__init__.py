"""Security groups of servers, which the network service keeps."""
