# shellcheck shell=bash
# Sourced by the scripts here: goes to the checkout, finds a Python that needs nothing installed.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
PYTHON="${PYTHON:-$(command -v python3.11 || command -v python3)}"
RUNS="${LOCKSTEP_RUNS:-.lockstep/gpu_stress}"
export PYTHON RUNS
