#!/usr/bin/env bash
# Ends what this checkout's last run has left, once it is over. Fails if something cannot be ended, or while a run goes on.
set -euo pipefail
case "${1:-}" in -h | --help)
    echo "usage: ci/end.sh"
    sed -n '2,/^[^#]/s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
# shellcheck source=ci/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec "$PYTHON" -m lockstep.ci.leftovers "$RUNS" --end
