"""What the process tells about itself: logs and metrics."""
