#!/usr/bin/env bash
# usage: ci/preflight.sh [--gpus N] [--rollout-gpus N] [--without-nvlink]
# Says whether this host can run the job now. Takes the options of gpu_stress, and --without-nvlink.
set -euo pipefail
# shellcheck source=ci/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
# shellcheck source=ci/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec "$PYTHON" -m lockstep.ci.preflight "$@"
