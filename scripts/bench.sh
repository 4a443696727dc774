# The benchmark.
# shellcheck shell=bash
. scripts/build.sh
. scripts/watchdog.sh

# The whole takes half an hour.
BENCH_LIMIT=7200

dev_bench() {
    need build run bench
    if [[ ${1:-} == mpi ]]; then need software; fi
    build_product release
    local profile=${RDMESH_BENCH_PROFILE:-harness} folder
    folder=${profile/#dev/debug}
    step "building the benchmark" cargo build --profile "$profile" -p rdmesh-bench
    # A router's files are in memory, where /run is: the benchmark of endpoints makes many.
    if [[ ${1:-} == endpoints && -w /dev/shm ]]; then export TMPDIR=/dev/shm; fi
    guarded $BENCH_LIMIT "the benchmark" "target/$folder/rdmesh-bench" "$@"
}
