# A container image of the router and what a node of Kubernetes needs, in target/packages, without a registry or an engine.
# shellcheck shell=bash
. scripts/package.sh

# add_to_image ROOT FILE...: programs of the product, stripped, and the shared libraries that they load.
add_to_image() {
    local root=$1 file library
    for file in "${@:2}"; do
        install -D -m 755 "$file" "$root/usr/bin/$(basename "$file")"
        strip "$root/usr/bin/$(basename "$file")"
        for library in $(ldd "$file" | grep -o '/[^ ]*'); do
            install -D -m 755 "$library" "$root$library"
        done
    done
}

# build_image FOLDER: of the product there. Says where it is, in RDMESH_IMAGE too.
build_image() {
    local built=$1 root version architecture
    need_packages binutils
    version=$(package_version) architecture=$(dpkg --print-architecture)
    root=$(mktemp -d)
    add_to_image "$root" "$built"/{rdmesh,rdmesh-cni,rdmesh-device-plugin,rdmesh-dra-driver,rdmesh-network-policies}
    install -D -m 755 -t "$root/usr/lib/rdmesh" "$built"/librdmesh{,-sockets,-mpi}.so
    install -D -m 644 -t "$root/usr/share/doc/rdmesh" LICENSE-MIT LICENSE-APACHE
    mkdir "$root/run" "$root/tmp"
    mkdir -p "$PACKAGES"
    export RDMESH_IMAGE=$PWD/$PACKAGES/rdmesh_${version}_$architecture.image.tar
    python3 scripts/image.py "$root" rdmesh "$version" "$architecture" "$(git log -1 --format=%ct 2>/dev/null || printf '0')" "$RDMESH_IMAGE"
    rm -r "$root"
}

dev_image() {
    need build
    build_product release
    step "making the image" build_image "$RDMESH_BIN"
    say "  ${RDMESH_IMAGE#"$PWD"/}"
}
