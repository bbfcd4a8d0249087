#!/usr/bin/env bash
# Ends what this checkout's last run has left, once it is over. Fails if something cannot be ended, or while a run goes on.
# LOCKSTEP_RUNS names the folder of the runs (default .lockstep/gpu_stress).
# usage: ci/end.sh
set -euo pipefail
# shellcheck source=ci/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
# shellcheck source=ci/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec "$PYTHON" -m lockstep.ci.leftovers "$RUNS" --end
