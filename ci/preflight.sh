#!/usr/bin/env bash
# Says whether this host can run the job now. Takes the options of gpu_stress, and --without-nvlink.
# LOCKSTEP_RUNS names the folder of the runs (default .lockstep/gpu_stress).
# usage: ci/preflight.sh [--gpus N] [--rollout-gpus N] [--without-nvlink] [options of gpu_stress]
set -euo pipefail
# shellcheck source=ci/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
# shellcheck source=ci/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec "$PYTHON" -m lockstep.ci.preflight "$@"
