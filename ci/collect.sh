#!/usr/bin/env bash
# usage: ci/collect.sh FOLDER (new or empty)
# Puts what explains the newest run into the folder given (new or empty): redacted, bounded.
set -euo pipefail
# shellcheck source=ci/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
[[ $# -eq 1 && $1 == [!-]* ]] || {
    echo "usage: ci/collect.sh FOLDER (new or empty)" >&2
    exit 2
}
to="$(realpath --canonicalize-missing "$1")"
# shellcheck source=ci/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
stack=.nox/stack-gpu/bin/python
[[ -x $stack ]] || stack="$PYTHON"
exec "$PYTHON" -m lockstep.ci.collect "$RUNS" "$to" --python "$stack"
