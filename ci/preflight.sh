#!/usr/bin/env bash
# Says whether this host can run the job now. Takes the options of gpu_stress, and --without-nvlink.
set -euo pipefail
case "${1:-}" in -h | --help)
    echo "usage: ci/preflight.sh [--gpus N] [--rollout-gpus N] [--without-nvlink]"
    sed -n '2,/^[^#]/s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
# shellcheck source=ci/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec "$PYTHON" -m lockstep.ci.preflight "$@"
