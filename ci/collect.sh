#!/usr/bin/env bash
# Puts what explains the newest run into the folder given (new or empty): redacted, bounded.
set -euo pipefail
to="$(realpath --canonicalize-missing "${1:?usage: ci/collect.sh FOLDER}")"
# shellcheck source=ci/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
stack=.nox/stack-gpu/bin/python
[[ -x $stack ]] || stack="$PYTHON"
exec "$PYTHON" -m lockstep.ci.collect "$RUNS" "$to" --python "$stack"
