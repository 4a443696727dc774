# The fuzz targets under fuzz/.
# shellcheck shell=bash
. scripts/setup.sh

# Compiled once for all working trees.
CARGO_FUZZ=${XDG_CACHE_HOME:-$HOME/.cache}/rdmesh/cargo-fuzz

install_cargo_fuzz() {
    cargo install --locked --root "$CARGO_FUZZ" cargo-fuzz
}

need_cargo_fuzz() {
    export PATH="$CARGO_FUZZ/bin:$PATH"
    command -v cargo-fuzz >/dev/null || step "installing cargo-fuzz" install_cargo_fuzz
}

dev_fuzz() {
    local target targets seconds=${2:-60} options=()
    need build
    need_packages g++
    need_cargo_fuzz
    # The stable compiler can instrument too, when it is told that it may.
    export RUSTC_BOOTSTRAP=1
    mapfile -t targets < <(cargo fuzz list)
    if [[ ${1:-} == --sample ]]; then
        mapfile -t targets < <(cargo fuzz list | sample "${2:-2}")
        seconds=10
        # Whether they build and run: without a sanitizer and not optimised they are built in a third of the time.
        options=(--dev --sanitizer none)
    elif (($#)); then
        [[ " ${targets[*]} " == *" $1 "* ]] || die "no fuzz target $1 (${targets[*]})"
        targets=("$1")
    fi
    for target in "${targets[@]}"; do
        step "building fuzz target $target" cargo fuzz build "${options[@]}" "$target"
        step "fuzzing $target for $seconds s" cargo fuzz run "${options[@]}" "$target" -- -max_total_time="$seconds" -rss_limit_mb=4096
        grep -h '^Done' "$LOGS/fuzzing-$target-for-$seconds-s.log" || true
    done
}
