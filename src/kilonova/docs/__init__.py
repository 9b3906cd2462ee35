"""Generates parts of the documentation from the declarations in the code."""
