"""What a CI runner with GPUs does around a run. Standard library only: it works before, and when nothing was,
installed."""
