"""The wave protocol of vLLM's offline data parallelism under ms-swift's server, as a model that can be
searched exhaustively.

`model` says what may happen next, `search` looks at everything that can happen, `report` runs the cases of
docs/protocol.md and puts them into words (`python -m protocol`). Standard library only."""

from protocol.model import INDEPENDENT, OPEN_WAVE, SHIPPED, Case, Protocol
from protocol.search import Result, search

__all__ = ["INDEPENDENT", "OPEN_WAVE", "SHIPPED", "Case", "Protocol", "Result", "search"]
