"""Services of other projects that run beside a cloud: their environments, processes, broker and users."""
