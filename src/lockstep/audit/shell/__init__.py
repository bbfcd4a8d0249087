"""Reads a launch script and follows it to the commands that it would run. Runs none of them."""
