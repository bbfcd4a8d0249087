#!/usr/bin/env bash
# Runs gpu_stress with the options given. One run at a time on a host, whoever starts it. `exec` all the way down: a signal to this
# process is a signal to nox, and what nox started ends with it.
# LOCKSTEP_RUNS names the folder of the runs (default .lockstep/gpu_stress).
# usage: ci/run.sh [options of gpu_stress]; `nox --session gpu_stress -- --help` lists them
set -euo pipefail
# shellcheck source=ci/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
# shellcheck source=ci/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
lock="${LOCKSTEP_LOCK:-/tmp/lockstep-gpus.lock}"
exec 9>>"$lock"
flock --wait "${LOCKSTEP_LOCK_WAIT:-60}" 9 || {
    echo "another run on this host holds $lock" >&2
    exit 3
}
if ! command -v nox >/dev/null; then
    "$PYTHON" -m venv .nox/ci
    .nox/ci/bin/python -m pip install --quiet 'nox[uv]>=2025.2'
    PATH="$PWD/.nox/ci/bin:$PATH"
fi
exec nox --session gpu_stress -- --out "$RUNS" "$@"
