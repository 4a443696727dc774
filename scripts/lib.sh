# What all verbs of ./dev share: progress on the terminal, everything else in log files.
# shellcheck shell=bash

LOGS=target/dev
mkdir -p "$LOGS"

bold() { if [[ -t 1 ]]; then printf '\033[1m%s\033[0m\n' "$*"; else printf '%s\n' "$*"; fi; }
say() { printf '%s\n' "$*"; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# step TEXT COMMAND...: one line of progress; the command's output is shown only when it fails.
step() {
    local text=$1 log begin
    shift
    log="$LOGS/$(printf '%s' "$text" | tr -cs 'a-zA-Z0-9' '-').log"
    begin=$SECONDS
    printf '  %s ... ' "$text"
    if "$@" >"$log" 2>&1; then
        printf 'done'
        if ((SECONDS - begin > 1)); then printf ' (%d s)' $((SECONDS - begin)); fi
        printf '\n'
    else
        printf 'FAILED\n'
        tail -n 40 "$log" >&2
        printf 'the whole log: %s\n' "$log" >&2
        return 1
    fi
}

# exclusively FUNCTION ARGUMENT...: one at a time of all that run side by side.
exclusively() {
    local lock status
    exec {lock}>"$LOGS/$1.lock"
    flock "$lock"
    # Not in a condition: there a command that fails would not end the function.
    "$@"
    status=$?
    exec {lock}>&-
    return $status
}

# sample COUNT: so many of the lines on standard input, others each day.
sample() {
    local count=$1 lines n day
    day=$(($(date +%s) / 86400))
    mapfile -t lines
    for ((n = 0; n < count; n++)); do printf '%s\n' "${lines[(day * count + n) % ${#lines[@]}]}"; done
}

# as_root COMMAND...
as_root() {
    if [[ $(id -u) == 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this needs root: $*"
    fi
}
