# Runs several parts of the tests, two at a time where that does not change what they say.
# shellcheck shell=bash
. scripts/lib.sh
. scripts/watchdog.sh

# Parts side by side: most of them wait most of the time.
LANES=${RDMESH_TEST_LANES:-2}

# run_part PART FOLDER: runs it within its limit and leaves a line about it in FOLDER.
run_part() {
    local part=$1 folder=$2 begin=$SECONDS verdict=passed
    # In a shell of its own, where a failing command ends the part.
    # shellcheck disable=SC2016 # the inner shell's variables
    guarded "$(limit_of "$part")" "the part $part" bash -euo pipefail -c '. scripts/lib.sh && . scripts/test.sh && "part_$1"' bash "$part" ||
        verdict=FAILED
    printf '%-10s %s  %4d s\n' "$part" "$verdict" $((SECONDS - begin)) >"$folder/$part.verdict"
}

# lane FOLDER PART...: takes one part after the other that no other lane has taken; shows each when it has ended.
lane() {
    local folder=$1 part
    shift
    for part in "$@"; do
        mkdir "$folder/$part.taken" 2>/dev/null || continue
        say "== $part begins"
        run_part "$part" "$folder" >"$folder/$part.log" 2>&1
        # shellcheck disable=SC2016 # the inner shell's variables
        flock "$folder" bash -c '. scripts/lib.sh && bold "$1" && cat "$2"' bash "== $part" "$folder/$part.log"
    done
}

# run_lanes FOLDER PART...: all of them, `LANES` at a time, the long ones first.
run_lanes() {
    local folder=$1 part sorted lanes=() n
    shift
    mapfile -t sorted < <(for part in "$@"; do printf '%d %s\n' "${USUAL_SECONDS[$part]}" "$part"; done | sort -rn | cut -d ' ' -f 2)
    for ((n = 0; n < LANES; n++)); do
        lane "$folder" "${sorted[@]}" &
        lanes+=($!)
    done
    wait "${lanes[@]}"
}
