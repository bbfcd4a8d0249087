"""Flight recorder dumps into the verdict that live ledgers give.

Reads what torch writes when a collective times out (`TORCH_FR_DUMP_TEMP_FILE`,
`TORCH_NCCL_DEBUG_INFO_TEMP_FILE`: one file a rank), pickled or JSON, of the versions 2.x of its format,
without torch and without Python's unpickler: nothing in a file is ever run or imported, and what a file may
cost is bounded by its size. docs/dumps.md has the rules and the limits.
"""

from .errors import DumpError
from .judge import judge
from .read import DumpSet, read_directory

__all__ = ["DumpError", "DumpSet", "judge", "read_directory"]
