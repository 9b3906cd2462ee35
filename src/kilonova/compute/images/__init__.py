"""The old ways to the image service, below 2.36 and 2.39."""
