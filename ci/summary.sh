#!/usr/bin/env bash
# usage: ci/summary.sh
# The job's page (GITHUB_STEP_SUMMARY, or the terminal) and junit.xml beside the run's summary.json.
set -euo pipefail
# shellcheck source=ci/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
# shellcheck source=ci/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec "$PYTHON" -m lockstep.ci.summary "$RUNS" --title "${LOCKSTEP_TITLE:-gpu_stress}" ${GITHUB_STEP_SUMMARY:+--page "$GITHUB_STEP_SUMMARY"}
