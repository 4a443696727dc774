# The tests, part by part.
# shellcheck shell=bash
. scripts/build.sh
. scripts/counts.sh
. scripts/lanes.sh

TEST_PARTS=(unit lint sim sockets programs hosts native chains cluster pools cni software mpi rxe vm pyverbs newest rootless docker page hostile sample package fresh)

# Nothing runs beside them: they use all processors by themselves.
ALONE_PARTS=(unit lint sim)

# Usual seconds of each part on two cores, with what it builds on a fresh machine.
declare -A USUAL_SECONDS=([unit]=480 [lint]=240 [sim]=240 [sockets]=240 [programs]=800 [hosts]=240 [native]=60 [chains]=180 [cluster]=180 [pools]=120 [cni]=120 [software]=300 [mpi]=150
    [rxe]=300 [vm]=300 [pyverbs]=240 [newest]=240 [rootless]=60 [docker]=60 [page]=120 [hostile]=120 [sample]=300 [package]=120 [fresh]=600)

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
        cargo test --quiet -p rdmesh-tests --lib &&
        compare_counts
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
    if [[ -n ${RDMESH_TEST_ALL:-} ]]; then need_node_tests; fi
    build_product tested
    run_tests sockets
}

part_programs() {
    need run test
    build_product tested
    run_tests programs verify isolation netns netlink faults economy scale moving policy doctor top conversion slow preload
}

part_hosts() {
    need run test
    build_product tested
    run_tests hosts wireshark
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
    run_tests cni podman kubernetes claims network_policies
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
    exclusively prepare_guest
    need run test
    build_product tested
    run_tests rxe
}

part_vm() {
    # shellcheck source=/dev/null
    . scripts/guest.sh
    exclusively prepare_guest
    need run test software
    need_packages redis-server redis-tools
    build_product tested
    run_tests vm
}

part_pyverbs() {
    # shellcheck source=/dev/null
    . scripts/rdma-core.sh
    exclusively prepare_rdma_core
    need run test
    build_product tested
    run_tests pyverbs
}

part_newest() {
    # shellcheck source=/dev/null
    . scripts/rdma-core.sh
    exclusively prepare_rdma_core
    exclusively prepare_musl_rdma_core
    need run test
    build_product tested
    run_tests newest musl
}

part_rootless() {
    need run test
    build_product tested
    run_tests rootless state restart declare events diagnose metrics
}

part_docker() {
    if [[ $(id -u) == 0 ]]; then need docker; fi
    need run test
    build_product tested
    # shellcheck source=/dev/null
    . scripts/image.sh
    step "making the image" build_image "$RDMESH_BIN"
    run_tests docker daemonset
}

part_page() {
    need run test page
    build_product tested
    run_tests page dashboard gateway
}

part_hostile() {
    need run test
    build_product tested
    run_tests hostile budget
}

# What is too long for every day, a little of it each day.
part_sample() {
    # shellcheck source=/dev/null
    . scripts/mutants.sh
    # shellcheck source=/dev/null
    . scripts/fuzz.sh
    dev_mutants --sample 2
    dev_fuzz --sample 1
}

# Packages are installed in a fresh root, used, upgraded and removed.
part_package() {
    # shellcheck source=/dev/null
    . scripts/package.sh
    # shellcheck source=/dev/null
    . scripts/fresh.sh
    need_packages binutils
    build_product tested
    build_packages "$RDMESH_BIN"
    RDMESH_PACKAGE_VERSION=$(package_version)+1 PACKAGES=$PACKAGES/newer build_packages "$RDMESH_BIN"
    dev_fresh --with-target package --try
}

# What a newcomer's machine lacks is found here: each verb begins with nothing installed.
part_fresh() {
    # shellcheck source=/dev/null
    . scripts/fresh.sh
    need build
    build_product tested
    step "the demo" dev_fresh --with-target demo
    step "tests without privilege" dev_fresh --with-target test rootless
    # They need little that the others do not.
    if [[ -n ${RDMESH_TEST_ALL:-} ]]; then
        # Not in each of the roots, which keep nothing; and not optimised, because no figure of these runs counts.
        export RDMESH_BENCH_PROFILE=dev
        step "building the benchmark" cargo build -p rdmesh-bench
        step "the benchmark" dev_fresh --with-target bench --quick
        step "the benchmark of policies" dev_fresh --with-target bench policies --quick
        step "the benchmark of endpoints" dev_fresh --with-target bench endpoints --quick
    fi
}

# What the parts that run side by side share: they find it built.
prepare_lanes() {
    need run test
    build_product tested
    export RDMESH_BUILT=target/tested
    step "compiling the tests" cargo test -p rdmesh-tests --no-run
}

# run_parts FOLDER PART...: first those that keep the processors busy by themselves, one at a time; then the others, side by side.
run_parts() {
    local folder=$1 part beside=()
    shift
    for part in "$@"; do
        if (($# > 1)) && [[ " ${ALONE_PARTS[*]} " != *" $part "* ]]; then
            beside+=("$part")
        else
            bold "== $part"
            run_part "$part" "$folder"
        fi
    done
    if ((${#beside[@]})); then
        bold "== preparing: ${beside[*]}"
        prepare_lanes
        run_lanes "$folder" "${beside[@]}"
    fi
}

dev_test() {
    local part folder
    if [[ ${1:-} == --all ]]; then
        export RDMESH_TEST_ALL=1
        shift
    fi
    if (($# == 0)); then set -- "${TEST_PARTS[@]}"; fi
    for part in "$@"; do
        [[ " ${TEST_PARTS[*]} " == *" $part "* ]] || die "unknown part: $part (${TEST_PARTS[*]})"
    done
    folder=$(mktemp -d "$LOGS/test.XXXXXX")
    run_parts "$folder" "$@"
    bold "== summary: $SECONDS s"
    for part in "$@"; do sed 's/^/  /' "$folder/$part.verdict"; done
    ! grep -q FAILED "$folder"/*.verdict && rm -r "$folder"
}
