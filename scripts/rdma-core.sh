# The newest rdma-core that Debian has the source of, made once and kept in the user's cache folder: built without the
# write() path, so that its programs reach the device by ioctl() and nothing else, and built with musl.
# shellcheck shell=bash
. scripts/setup.sh

RDMA_CORE_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/rdmesh
# Versions with the SHA-256 of their source, the best first. Debian keeps a source for as long as one of its releases
# has it: the last is that of a stable release.
RDMA_CORE_SOURCES=(
    65.0:f6ba3d8b2c4aa334c5c883c1ad0772de339011123cff4fb1db32ae7a443fb7ca
    56.1:63ce7f2baa7242c2dbc76375dac957c420187dd27f8c5e148efc07971ee522a8
)
# perftest is linked with the libraries of two vendors, which must be of the same version.
RDMA_CORE_TARGETS=(ibverbs rdmacm rspreload mlx5 efa ibv_{devices,devinfo} ibv_{rc,uc,ud,srq}_pingpong
    rping ucmatose udaddy mckey rdma_{server,client} rstream riostream)
# The same with musl instead of glibc: what a program in Alpine is linked with.
MUSL_TARGETS=(ibverbs rdmacm ibv_{devices,devinfo,rc_pingpong,srq_pingpong} rping)
# Tests of its suite that Debian's stable release does not have.
RDMA_CORE_TESTS=(test_srq.py)

# Downloads with apt's own program, which knows apt's proxies and checks the sum.
fetch_rdma_core() {
    local version=$1 sum=$2 to=$3
    /usr/lib/apt/apt-helper download-file \
        "$(debian_mirror)pool/main/r/rdma-core/rdma-core_$version.orig.tar.gz" "$to" "SHA256:$sum"
}

configure_rdma_core() {
    local folder=$1 flavour=$2 options=(-DIOCTL_MODE=ioctl -DPYTHON_EXECUTABLE=/usr/bin/python3)
    if [[ $flavour == musl ]]; then
        link_kernel_headers "$folder/include"
        options=(-DCMAKE_C_COMPILER=musl-gcc "-DCMAKE_C_FLAGS=-isystem $folder/include" -DENABLE_RESOLVE_NEIGH=0 -DNO_PYVERBS=1)
    fi
    cmake -S "$folder/source" -B "$folder/build" -GNinja -DIN_PLACE=1 -DCMAKE_BUILD_TYPE=Release \
        -DNO_MAN_PAGES=1 -DENABLE_VALGRIND=0 "${options[@]}"
}

# The kernel's headers, which musl-gcc does not look for, without glibc's beside them.
link_kernel_headers() {
    mkdir -p "$1"
    ln -sfn /usr/include/linux /usr/include/asm-generic "/usr/include/$(gcc -print-multiarch)/asm" "$1/"
}

rdma_core_provider() {
    ninja -C "$1" -t targets all | grep -o '^lib/librxe-rdmav[0-9]*\.so'
}

# The modules of pyverbs.
rdma_core_modules() {
    ninja -C "$1" -t targets all | grep -o '^python/[^:]*\.so'
}

# Leaves the programs and libraries, no provider but rxe's, pyverbs, the whole suite, and a few tests of it.
strip_rdma_core() {
    mkdir -p "$1/build/python" && cp -rL "$1/build/python" "$1/python" &&
        find "$1/build/etc/libibverbs.d" -type f ! -name rxe.driver -delete &&
        find "$1/build" -mindepth 1 -maxdepth 1 ! -name bin ! -name lib ! -name etc -exec rm -r {} + &&
        mv "$1/python" "$1/build/python" &&
        mkdir "$1/build/suite" "$1/build/tests" && cp "$1"/source/tests/*.py "$1/build/suite/" &&
        cp "${RDMA_CORE_TESTS[@]/#/$1/source/tests/}" "$1/build/tests/" &&
        sed -n 's/^set(PACKAGE_VERSION "\(.*\)").*/\1/p' "$1/source/CMakeLists.txt" >"$1/build/version"
}

# What it is built from and how: when anything of it changes, it is built anew.
rdma_core_recipe() {
    { declare -p RDMA_CORE_TARGETS MUSL_TARGETS RDMA_CORE_TESTS &&
        declare -f configure_rdma_core link_kernel_headers rdma_core_modules strip_rdma_core build_rdma_core; } |
        sha256sum | cut -c 1-16
}

# The paths of the folder are compiled into the libraries: it cannot be moved when all is done.
build_rdma_core() {
    local tar=$1 folder=$2 flavour=$3 targets=("${RDMA_CORE_TARGETS[@]}") modules=()
    if [[ $flavour == musl ]]; then targets=("${MUSL_TARGETS[@]}"); fi
    rm -rf "$folder" && mkdir -p "$folder/source" &&
        tar -xf "$tar" -C "$folder/source" --strip-components=1 &&
        configure_rdma_core "$folder" "$flavour" &&
        if [[ $flavour != musl ]]; then mapfile -t modules < <(rdma_core_modules "$folder/build"); fi &&
        ninja -C "$folder/build" "${targets[@]}" "${modules[@]}" "$(rdma_core_provider "$folder/build")" &&
        strip_rdma_core "$folder" &&
        rm -r "$folder/source" "$tar" &&
        rdma_core_recipe >"$folder/complete"
}

# Sets RDMESH_RDMA_CORE to the folder with `bin`, `lib`, `python`, `suite` and `tests`.
prepare_rdma_core() {
    prepare_flavour ioctl
    export RDMESH_RDMA_CORE=$PREPARED
}

# Sets RDMESH_MUSL to the same, built with musl.
prepare_musl_rdma_core() {
    need musl
    prepare_flavour musl
    export RDMESH_MUSL=$PREPARED
}

# Sets PREPARED to where it was built.
prepare_flavour() {
    local flavour=$1 source version folder tar recipe
    recipe=$(rdma_core_recipe)
    for source in "${RDMA_CORE_SOURCES[@]}"; do
        folder=$RDMA_CORE_CACHE/rdma-core-${source%:*}-$flavour
        PREPARED=$folder/build
        if [[ $(cat "$folder/complete" 2>/dev/null) == "$recipe" ]]; then return; fi
    done
    need build source
    mkdir -p "$RDMA_CORE_CACHE"
    for source in "${RDMA_CORE_SOURCES[@]}"; do
        version=${source%:*}
        folder=$RDMA_CORE_CACHE/rdma-core-$version-$flavour
        PREPARED=$folder/build
        tar=$folder.tar.gz
        if step "downloading the source of rdma-core $version" fetch_rdma_core "$version" "${source#*:}" "$tar"; then
            step "building rdma-core $version ($flavour)" build_rdma_core "$tar" "$folder" "$flavour"
            return
        fi
    done
    die "Debian's mirror has none of the rdma-core sources that scripts/rdma-core.sh names: add the version that it has"
}
