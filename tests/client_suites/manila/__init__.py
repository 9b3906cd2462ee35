"""Manila beside a cloud, and servers with its shares."""
