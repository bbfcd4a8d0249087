#!/usr/bin/env bash
# The job's page (GITHUB_STEP_SUMMARY, or the terminal) and junit.xml beside the run's summary.json.
set -euo pipefail
case "${1:-}" in -h | --help)
    echo "usage: ci/summary.sh"
    sed -n '2,/^[^#]/s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
# shellcheck source=ci/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec "$PYTHON" -m lockstep.ci.summary "$RUNS" --title "${LOCKSTEP_TITLE:-gpu_stress}" ${GITHUB_STEP_SUMMARY:+--page "$GITHUB_STEP_SUMMARY"}
