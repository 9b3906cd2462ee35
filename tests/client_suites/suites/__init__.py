"""One module per suite, named like the suite with `_` for `-`. Its `SUITE` says how the suite runs."""
