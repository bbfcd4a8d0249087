"""`python -m protocol`: prints what the search finds. About two minutes."""

from __future__ import annotations

from protocol.report import lines

for line in lines():
    print(line, flush=True)
