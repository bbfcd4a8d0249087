"""One job of the stack: what to run, how it is launched, watched and ended."""
