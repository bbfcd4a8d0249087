"""Files for ms-swift's `--external_plugins`. They are imported by path, under their bare names, not as part
of this package.
"""
