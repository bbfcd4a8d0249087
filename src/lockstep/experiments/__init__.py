"""Experiments: each runs real jobs and compares how they end with what is expected."""
