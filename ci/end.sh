#!/usr/bin/env bash
# usage: ci/end.sh
# Ends what this checkout's last run has left, once it is over. Fails if something cannot be ended, or while a run goes on.
set -euo pipefail
# shellcheck source=ci/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
# shellcheck source=ci/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec "$PYTHON" -m lockstep.ci.leftovers "$RUNS" --end
