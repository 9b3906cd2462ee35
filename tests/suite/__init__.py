"""Tests of the test suite: its verdict, its delays, and the style of the code."""
