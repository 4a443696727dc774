# The benchmark.
# shellcheck shell=bash
. scripts/build.sh
. scripts/watchdog.sh

# The whole takes half an hour.
BENCH_LIMIT=7200

dev_bench() {
    need build run bench
    build_product release
    step "building the benchmark" cargo build --profile harness -p rdmesh-bench
    guarded $BENCH_LIMIT "the benchmark" target/harness/rdmesh-bench "$@"
}
