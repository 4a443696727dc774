# Builds the product: target/release/rdmesh and target/release/librdmesh.so.
# shellcheck shell=bash
. scripts/setup.sh

# The program finds the library beside itself.
build_library() {
    local built
    built=$(scripts/build-shim.sh)
    # Programs may have the old one mapped: it is replaced, not written over.
    cp "$built" target/release/librdmesh.so.new
    mv target/release/librdmesh.so.new target/release/librdmesh.so
}

# What --with-target of `./dev fresh` brings along is not built again.
build_product() {
    if [[ -n ${RDMESH_BUILT:-} && -x target/release/rdmesh && -f target/release/librdmesh.so ]]; then return; fi
    need build
    step "building rdmesh" cargo build --release -p rdmesh-cli
    step "building librdmesh.so" build_library
}

dev_build() {
    build_product
    say "built: target/release/rdmesh target/release/librdmesh.so"
}
