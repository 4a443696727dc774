# Instructions of the paths that matter, beside tests/counts.toml.
# shellcheck shell=bash
. scripts/setup.sh

compare_counts() {
    need build
    need_packages valgrind
    cargo test --quiet -p rdmesh-tests --test counts -- --nocapture
}

dev_counts() {
    case "$*" in
        '') ;;
        --write) export RDMESH_COUNTS=write ;;
        *) die "usage: ./dev counts [--write]" ;;
    esac
    compare_counts
}
