# Builds the product: rdmesh and librdmesh.so, in target/release or, for tests, in target/tested.
# shellcheck shell=bash
. scripts/setup.sh

# The program finds the library beside itself.
build_library() {
    local built
    built=$(scripts/build-shim.sh "$1")
    # Programs may have the old one mapped: it is replaced, not written over.
    cp "$built" "target/$1/librdmesh.so.new"
    mv "target/$1/librdmesh.so.new" "target/$1/librdmesh.so"
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
    step "building rdmesh ($profile)" cargo build --profile "$profile" -p rdmesh-cli
    step "building librdmesh.so ($profile)" build_library "$profile"
    export RDMESH_BIN=$PWD/target/$profile
}

dev_build() {
    build_product release
    say "built: target/release/rdmesh target/release/librdmesh.so"
}
