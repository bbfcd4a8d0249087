#!/usr/bin/env bash
# Says whether this host can run the job now. Takes the options of gpu_stress, and --without-nvlink.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec "$PYTHON" -m lockstep.ci.preflight "$@"
