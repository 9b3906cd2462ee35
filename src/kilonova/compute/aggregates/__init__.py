"""Aggregates: hosts that have something in common, and what operators say of them."""
