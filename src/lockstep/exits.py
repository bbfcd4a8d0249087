"""Every exit code, in one place. README has them as a table."""

from __future__ import annotations

VERDICTS = {"in step": 0, "diverged": 1, "stuck": 1, "stalled": 3, "incomplete": 4}
"""Of `verify` and `dumps`, by the verdict's kind."""
DIAGNOSES = {None: 3, "unknown": 1}
"""Of `diagnose`, by the cause: nothing to diagnose, no known cause; any other cause is 0."""
FORESEEN = 2
"""Wrong usage, or input and places that cannot be used: what the user can put right."""
UNFORESEEN = 70
"""EX_SOFTWARE (sysexits.h): an error of Lockstep's own. 1 would be a verdict."""
STOP_GIT = 128
"""`git bisect run` stops at this and above: what is wrong is no commit's fault."""
INTERRUPTED = 130
"""After Ctrl-C, as shells have it; after SIGTERM and SIGHUP it is 128 and the signal's number."""
