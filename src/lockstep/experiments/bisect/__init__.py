"""Which release of a pinned package changed the verdict of an arm: found by running the job on releases.

`releases` lists them, `search` (pure) picks the next, `environment` builds one's environment, `probe` runs
the arm in it, `log` keeps what came of it, `table` writes the page.
"""
