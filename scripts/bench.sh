# The benchmark.
# shellcheck shell=bash
. scripts/build.sh

dev_bench() {
    need build run bench
    build_product
    step "building the benchmark" cargo build --profile harness -p rdmesh-bench
    target/harness/rdmesh-bench "$@"
}
