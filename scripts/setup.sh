# Installs what the verbs need, and says so; does nothing where it is there already.
# shellcheck shell=bash

PACKAGES_BUILD=(gcc libc6-dev make python3-venv)
PACKAGES_RUN=(rdma-core ibverbs-utils ibverbs-providers libibverbs1 perftest qperf iproute2)
PACKAGES_TEST=(gcc libc6-dev make libibverbs-dev librdmacm-dev python3-pyverbs ucx-utils iperf3 strace valgrind util-linux nftables shellcheck tshark)
# The programs of docs/software.md, and what the examples are compiled with.
PACKAGES_SOFTWARE=(rdmacm-utils librdmacm1 ucx-utils libfabric-bin openmpi-bin libopenmpi-dev mpich libmpich-dev fio iperf netpipe-tcp gfortran
    python3-pyverbs libibverbs-dev librdmacm-dev cmake libclang-dev)
# What speaks memcached's protocol, and memcached itself; what the client in Rust is compiled with.
PACKAGES_CHAINS=(memcached libmemcached-tools cmake libclang-dev)
PACKAGES_SOCKETS=(gcc libc6-dev make redis-server redis-tools nginx-light haproxy wrk curl python3 postgresql memcached
    libmemcached-tools nodejs default-jdk-headless xz-utils)
PACKAGES_CNI=(python3-grpcio python3-protobuf containernetworking-plugins iproute2 iputils-ping redis-server redis-tools podman runc python3)
PACKAGES_CLUSTER=(etcd-server etcd-client openssl iproute2 iputils-ping rdmacm-utils)
PACKAGES_DOCKER=(docker.io redis-server redis-tools)
PACKAGES_GUEST=(qemu-system-x86 busybox-static cpio kmod xz-utils rdmacm-utils)
PACKAGES_BENCH=(redis-server redis-tools iperf3 gcc libc6-dev make ucx-utils libibverbs-dev librdmacm-dev strace util-linux)
PACKAGES_SOURCE=(cmake ninja-build pkg-config libnl-3-dev libnl-route-3-dev cython3 python3-dev)
PACKAGES_MUSL=(musl-tools linux-libc-dev)
PACKAGES_PAGE=(chromium chromium-driver python3-selenium python3 curl openssl prometheus)

# What looks for barriers in pages; MPL-2.0, used by the test alone.
AXE_VERSION=4.11.0
AXE_SHA256=39bed7d72308f6d620789c169d699bfd7e8da80f65b545821a6b2215c3e83107
AXE=${XDG_CACHE_HOME:-$HOME/.cache}/rdmesh/axe-core-$AXE_VERSION.js

# Node's own tests, of the source of Debian's package: MIT, used by the long form of the tests of sockets alone.
NODE_SOURCE=nodejs_18.20.4+dfsg.orig.tar.xz
NODE_SHA256=6ce58062c71eae37d9c5ac31eeaeff9c2d48561d21c2849179d056c9c1bd9ebc
NODE_TESTS=${XDG_CACHE_HOME:-$HOME/.cache}/rdmesh/node-tests-18.20.4

missing_packages() {
    local package
    for package in "$@"; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || printf '%s\n' "$package"
    done
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

apt_update_and_install() {
    # The package lists may be there and good: asking for them again costs more than most installations.
    apt_install "$@" || { as_root apt-get update && apt_install "$@"; }
}

need_packages() {
    local missing
    if ! command -v dpkg-query >/dev/null; then
        say "  this is not Debian or Ubuntu: see that you have $*"
        return
    fi
    mapfile -t missing < <(missing_packages "$@")
    if ((${#missing[@]})); then
        step "installing from Debian: ${missing[*]}" exclusively apt_update_and_install "${missing[@]}"
    fi
}

# What apt is configured to ask for Debian's packages.
debian_mirror() {
    local uri
    # shellcheck disable=SC2016 # apt's variable, not the shell's
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' 'Created-By: Packages' 2>/dev/null | head -n 1)
    printf '%s\n' "${uri:-http://deb.debian.org/debian/}"
}

install_rust() {
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --component rustfmt,clippy
}

need_rust() {
    export PATH="$PATH:$HOME/.cargo/bin"
    if ! command -v cargo >/dev/null; then
        need_packages curl ca-certificates
        step "installing Rust with rustup" install_rust
    fi
}

fetch_axe() {
    local folder archive
    folder=$(mktemp -d) && archive=$folder/axe-core.tgz
    curl -sSf "https://registry.npmjs.org/axe-core/-/axe-core-$AXE_VERSION.tgz" -o "$archive" &&
        sha256sum --quiet -c - <<<"$AXE_SHA256  $archive" &&
        tar xzf "$archive" -C "$folder" package/axe.min.js &&
        mkdir -p "${AXE%/*}" && mv "$folder/package/axe.min.js" "$AXE"
    rm -rf "$folder"
    [[ -s $AXE ]]
}

need_axe() {
    if [[ ! -s $AXE ]]; then step "fetching axe-core $AXE_VERSION from npm's registry" fetch_axe; fi
    export RDMESH_AXE=$AXE
}

fetch_node_tests() {
    local folder
    folder=$(mktemp -d) &&
        curl -sSf "$(debian_mirror)pool/main/n/nodejs/$NODE_SOURCE" -o "$folder/source" &&
        sha256sum --quiet -c - <<<"$NODE_SHA256  $folder/source" &&
        tar xJf "$folder/source" -C "$folder" --strip-components=1 --wildcards \
            '*/test/common' '*/test/parallel' '*/test/sequential' '*/test/fixtures' &&
        mkdir -p "${NODE_TESTS%/*}" && rm "$folder/source" && mv "$folder" "$NODE_TESTS"
    rm -rf "$folder"
    [[ -d $NODE_TESTS/test ]]
}

need_node_tests() {
    if [[ ! -d $NODE_TESTS/test ]]; then step "fetching Node's tests from Debian's source" fetch_node_tests; fi
    export RDMESH_NODE_TESTS=$NODE_TESTS
}

need() {
    local part
    need_rust
    for part in "$@"; do
        case $part in
            build) need_packages "${PACKAGES_BUILD[@]}" ;;
            run) need_packages "${PACKAGES_RUN[@]}" ;;
            test) need_packages "${PACKAGES_TEST[@]}" ;;
            software) need_packages "${PACKAGES_SOFTWARE[@]}" ;;
            chains) need_packages "${PACKAGES_CHAINS[@]}" ;;
            cni) need_packages "${PACKAGES_CNI[@]}" ;;
            sockets)
                need_packages "${PACKAGES_SOCKETS[@]}"
                # CPython's own tests, which come in a package of each version.
                need_packages "libpython$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')-testsuite"
                ;;
            cluster) need_packages "${PACKAGES_CLUSTER[@]}" ;;
            docker) need_packages "${PACKAGES_DOCKER[@]}" ;;
            guest) need_packages "${PACKAGES_GUEST[@]}" ;;
            bench) need_packages "${PACKAGES_BENCH[@]}" ;;
            source) need_packages "${PACKAGES_SOURCE[@]}" ;;
            musl) need_packages "${PACKAGES_MUSL[@]}" ;;
            page) need_packages "${PACKAGES_PAGE[@]}" && need_axe ;;
            *) die "unknown part: $part (build, run, test, software, chains, sockets, cni, cluster, docker, guest, bench, source, musl, page)" ;;
        esac
    done
}

dev_setup() {
    if (($# == 0)); then set -- build run test software chains sockets cni cluster docker guest bench source musl page; fi
    need "$@"
    say "everything is there"
}
