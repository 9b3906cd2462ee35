"""The built-in image service, and compute's client to it or to a real Glance."""
