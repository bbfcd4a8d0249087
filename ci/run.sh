#!/usr/bin/env bash
# usage: ci/run.sh [options of gpu_stress, --without-nvlink]
# Runs the preflight and then gpu_stress, with the options given. One run at a time on a host, whoever starts it.
# `exec` all the way down: a signal to this process is a signal to nox, and what nox started ends with it.
set -euo pipefail
# shellcheck source=ci/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
# shellcheck source=ci/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
lock="${LOCKSTEP_LOCK:-/tmp/lockstep-gpus.lock}"
# Opened to read, so that a file which another user has made will do, also in /tmp; made only where there is nothing, not even a link.
(umask 022; set -o noclobber; : >"$lock") 2>/dev/null || true
if [[ ! -f $lock || ! -r $lock ]]; then
    echo "$lock: expected a file that this user can read; LOCKSTEP_LOCK names another one" >&2
    exit 2
fi
exec 9<"$lock"
flock --wait "${LOCKSTEP_LOCK_WAIT:-60}" 9 || {
    echo "another run on this host holds $lock" >&2
    exit 3
}
# Within the lock: the preflight refuses while another run's processes live, and here that run is over.
rest=()
for word in "$@"; do
    [[ $word == --without-nvlink ]] || rest+=("$word")
done
ulimit -S -n "$(ulimit -H -n)" 2>/dev/null || true
ulimit -S -u "$(ulimit -H -u)" 2>/dev/null || true
mkdir -p "$RUNS"
# What an earlier run has left here must not be taken for this one's.
rm -f "$RUNS/summary.json" "$RUNS/junit.xml" "$RUNS/run.json"
"$PYTHON" -m lockstep.ci.preflight "$@" --record "$RUNS/run.json"
if ! command -v nox >/dev/null; then
    "$PYTHON" -m venv .nox/ci
    .nox/ci/bin/python -m pip install --quiet -r constraints/tools.txt
    PATH="$PWD/.nox/ci/bin:$PATH"
fi
exec nox --session gpu_stress -- --out "$RUNS" "${rest[@]}"
