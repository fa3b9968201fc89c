"""Whole experiments: launches in a fair order, analyzed and reported."""
