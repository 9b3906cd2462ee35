"""Networks: the segments that ports are on."""
