# Builds the product: rdmesh, rdmesh-cni, rdmesh-runtime, rdmesh-device-plugin, rdmesh-dra-driver, rdmesh-network-policies, rdmesh-guest, librdmesh.so, librdmesh-sockets.so and librdmesh-mpi.so, in target/release or, for tests, in target/tested.
# shellcheck shell=bash
. scripts/setup.sh

# The program finds the libraries beside itself.
build_libraries() {
    local built library
    built=$(scripts/build-shim.sh "$1")
    for library in librdmesh.so librdmesh-sockets.so librdmesh-mpi.so rdmesh-guest; do
        # Programs may have the old one mapped: it is replaced, not written over.
        cp "$built/$library" "target/$1/$library.new"
        mv "target/$1/$library.new" "target/$1/$library"
    done
}

# build_product PROFILE: sets RDMESH_BIN, the product's folder. The profile `tested` is not optimised across crates, and quick
# to build again after a change. What --with-target of `./dev fresh` brings along is not built again.
build_product() {
    local profile=$1
    if [[ -n ${RDMESH_BUILT:-} ]]; then
        export RDMESH_BIN=$PWD/$RDMESH_BUILT
        return
    fi
    need build
    step "building rdmesh ($profile)" cargo build --profile "$profile" -p rdmesh-cli -p rdmesh-cni -p rdmesh-oci -p rdmesh-kube -p rdmesh-dra -p rdmesh-kube-policy
    step "building the libraries ($profile)" build_libraries "$profile"
    export RDMESH_BIN=$PWD/target/$profile
}

dev_build() {
    build_product release
    say "built: target/release/rdmesh target/release/rdmesh-cni target/release/rdmesh-runtime target/release/rdmesh-device-plugin target/release/rdmesh-dra-driver target/release/rdmesh-network-policies target/release/rdmesh-guest target/release/librdmesh.so target/release/librdmesh-sockets.so target/release/librdmesh-mpi.so"
}
