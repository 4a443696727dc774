# The tests, part by part.
# shellcheck shell=bash
. scripts/build.sh
. scripts/watchdog.sh

TEST_PARTS=(unit lint sim sockets programs hosts native chains cluster pools cni software mpi rxe vm pyverbs newest rootless docker hostile fresh)

# Usual seconds of each part on two cores, with what it builds on a fresh machine.
declare -A USUAL_SECONDS=([unit]=480 [lint]=240 [sim]=240 [sockets]=240 [programs]=800 [hosts]=240 [native]=60 [chains]=180 [cluster]=180 [pools]=120 [cni]=120 [software]=300 [mpi]=90
    [rxe]=300 [vm]=300 [pyverbs]=240 [newest]=240 [rootless]=60 [docker]=60 [hostile]=120 [fresh]=600)

# limit_of PART: seconds after which the part has failed: three times the usual, in the long form twenty times.
limit_of() {
    local times=3
    if [[ -n ${RDMESH_TEST_ALL:-} ]]; then times=20; fi
    printf '%d\n' $((USUAL_SECONDS[$1] * times))
}

# run_tests TEST...: whole-system tests; one at a time, because each one needs the processor for itself.
run_tests() {
    local test arguments=()
    for test in "$@"; do arguments+=(--test "$test"); done
    step "compiling the tests: $*" cargo test -p rdmesh-tests "${arguments[@]}" --no-run
    cargo test --quiet -p rdmesh-tests "${arguments[@]}" --no-fail-fast -- --test-threads=1 --nocapture --format pretty
}

part_unit() {
    need build
    step "compiling the unit tests" cargo test --workspace --exclude rdmesh-tests --exclude rdmesh-sim --no-run
    cargo test --quiet --workspace --exclude rdmesh-tests --exclude rdmesh-sim --no-fail-fast &&
        cargo test --quiet -p rdmesh-tests --lib
}

# Optimised, because many seeds are run.
part_sim() {
    need build
    step "compiling the simulator" cargo test --profile sim -p rdmesh-sim --no-run
    cargo test --quiet --profile sim -p rdmesh-sim --no-fail-fast
}

part_lint() {
    need build test
    need_packages g++
    step "formatting" cargo fmt --all --check &&
        step "clippy" cargo clippy --workspace --all-targets -- -D warnings &&
        step "documentation" env RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --workspace --no-deps --document-private-items &&
        step "fuzz targets" env CARGO_TARGET_DIR=target cargo check --manifest-path fuzz/Cargo.toml &&
        step "shell scripts" shellcheck -x dev .ci/run scripts/*.sh &&
        cargo test --quiet -p rdmesh-tests --test architecture --test mutants --test watchdog
}

part_sockets() {
    need run test sockets
    build_product tested
    run_tests sockets
}

part_programs() {
    need run test
    build_product tested
    run_tests programs verify isolation netns netlink faults economy scale moving policy doctor conversion slow preload
}

part_hosts() {
    need run test
    build_product tested
    run_tests hosts
}

part_native() {
    need run test
    build_product tested
    run_tests native
}

part_chains() {
    need run test chains
    build_product tested
    run_tests chains
}

part_cluster() {
    need run test cluster
    build_product tested
    run_tests cluster
}

part_pools() {
    need run test cluster
    build_product tested
    run_tests pools confinement
}

part_cni() {
    need run test cni
    build_product tested
    run_tests cni podman
}

part_software() {
    need run test software
    build_product tested
    run_tests software
}

part_mpi() {
    need run test software
    build_product tested
    run_tests mpi
}

part_rxe() {
    # shellcheck source=/dev/null
    . scripts/guest.sh
    prepare_guest
    need run test
    build_product tested
    run_tests rxe
}

part_vm() {
    # shellcheck source=/dev/null
    . scripts/guest.sh
    prepare_guest
    need run test software
    build_product tested
    run_tests vm
}

part_pyverbs() {
    # shellcheck source=/dev/null
    . scripts/rdma-core.sh
    prepare_rdma_core
    need run test
    build_product tested
    run_tests pyverbs
}

part_newest() {
    # shellcheck source=/dev/null
    . scripts/rdma-core.sh
    prepare_rdma_core
    prepare_musl_rdma_core
    need run test
    build_product tested
    run_tests newest musl
}

part_rootless() {
    need run test
    build_product tested
    run_tests rootless state restart
}

part_docker() {
    if [[ $(id -u) == 0 ]]; then need docker; fi
    need run test
    build_product tested
    run_tests docker
}

part_hostile() {
    need run test
    build_product tested
    run_tests hostile budget
}

# What a newcomer's machine lacks is found here: each verb begins with nothing installed.
part_fresh() {
    # shellcheck source=/dev/null
    . scripts/fresh.sh
    need build
    build_product tested
    # Not in each of the roots, which keep nothing; and not optimised, because no figure of these runs counts.
    export RDMESH_BENCH_PROFILE=dev
    step "building the benchmark" cargo build -p rdmesh-bench
    step "the demo" dev_fresh --with-target demo
    step "tests without privilege" dev_fresh --with-target test rootless
    step "the benchmark" dev_fresh --with-target bench --quick
    # They need nothing that the others do not.
    if [[ -n ${RDMESH_TEST_ALL:-} ]]; then
        step "the benchmark of policies" dev_fresh --with-target bench policies --quick
        step "the benchmark of endpoints" dev_fresh --with-target bench endpoints --quick
    fi
}

dev_test() {
    local part begin summary=() failed=0
    if [[ ${1:-} == --all ]]; then
        export RDMESH_TEST_ALL=1
        shift
    fi
    if (($# == 0)); then set -- "${TEST_PARTS[@]}"; fi
    for part in "$@"; do
        [[ " ${TEST_PARTS[*]} " == *" $part "* ]] || die "unknown part: $part (${TEST_PARTS[*]})"
    done
    for part in "$@"; do
        bold "== $part"
        begin=$SECONDS
        # In a shell of its own, where a failing command ends the part.
        # shellcheck disable=SC2016 # the inner shell's variables
        if guarded "$(limit_of "$part")" "the part $part" bash -euo pipefail -c '. scripts/lib.sh && . scripts/test.sh && "part_$1"' bash "$part"; then
            summary+=("$(printf '%-10s passed  %4d s' "$part" $((SECONDS - begin)))")
        else
            summary+=("$(printf '%-10s FAILED  %4d s' "$part" $((SECONDS - begin)))")
            failed=1
        fi
    done
    bold "== summary"
    printf '  %s\n' "${summary[@]}"
    return $failed
}
