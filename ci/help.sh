# shellcheck shell=bash
# Sourced first by the scripts here: prints the comment at their head for --help or -h, and starts nothing.
for word in "$@"; do
    if [[ $word == --help || $word == -h ]]; then
        sed -n '2,${/^#/!q;/^# shellcheck/!s/^# \{0,1\}//p}' "$0"
        exit 0
    fi
done
