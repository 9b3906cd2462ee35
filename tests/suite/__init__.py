"""Tests of the test suite: rechecks of flaky tests, delays, soak runs, and the style of the code."""
