#!/usr/bin/env bash
# Whether every way to build has the same features of every dependency; where one has not, crates are compiled twice.
# proto/features/Cargo.toml says why and is the place to mend it.
set -euo pipefail
cd "$(dirname "$0")/.."

resolved() {
    cargo tree --quiet --prefix none --format '{p} {f}' "$@" | sed 's/ (\*)$//' | sort -u
}

failed=0
# What runs, and what builds it: of one crate both may be there, with features of their own.
compare() {
    local only edges
    for edges in normal,no-proc-macro normal,build; do
        only=$(comm -23 <(resolved --edges "$edges" "${@:2}") <(resolved --edges "$edges,dev"))
        if [ -n "$only" ]; then
            printf 'features that %s has and the tests have not, or the other way round:\n%s\n' "$1" "$only" >&2
            failed=1
        fi
    done
}

compare "cargo build"
compare "the command" --package probe
compare "the agent's wheel" --package probe-agent
if [ "$failed" = 1 ]; then
    echo 'hint: proto/features/Cargo.toml asks for features that only some of the packages ask for' >&2
fi
exit "$failed"
