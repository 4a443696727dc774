# Debian packages, in target/packages: the router with its command line, the library, the guest's agent, what a node of Kubernetes needs, the documentation.
# shellcheck shell=bash
. scripts/build.sh

PACKAGES=target/packages
MAINTAINER='rdmesh <rdmesh@localhost>'

# The workspace's, or that of the variable.
package_version() {
    if [[ -n ${RDMESH_PACKAGE_VERSION:-} ]]; then
        printf '%s\n' "$RDMESH_PACKAGE_VERSION"
        return
    fi
    sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml
}

# needed_libc FILE...: the newest version of glibc that one of them needs.
needed_libc() {
    objdump -T "$@" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1
}

# put MODE FROM... FOLDER: files into a folder of the package in $ROOT.
put() {
    local mode=$1 files=("${@:2:$#-2}") folder=$ROOT${!#}
    install -d "$folder"
    install -m "$mode" "${files[@]}" "$folder/"
}

# control NAME DEPENDS RECOMMENDS TEXT DESCRIPTION: the package's control file.
control() {
    install -d "$ROOT/DEBIAN"
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: %s\n' "$1" "$(package_version)" "$(dpkg --print-architecture)" "$MAINTAINER"
        printf 'Section: net\nPriority: optional\nInstalled-Size: %d\n' "$(du -sk --apparent-size "$ROOT" | cut -f 1)"
        if [[ -n $2 ]]; then printf 'Depends: %s\n' "$2"; fi
        if [[ -n $3 ]]; then printf 'Recommends: %s\n' "$3"; fi
        printf 'Description: %s\n %s\n' "$4" "$5"
    } >"$ROOT/DEBIAN/control"
    install -d "$ROOT/usr/share/doc/$1"
    cat LICENSE-MIT LICENSE-APACHE >"$ROOT/usr/share/doc/$1/copyright"
    (cd "$ROOT" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
}

# begin_package NAME: an empty root of it.
begin_package() {
    ROOT=$PACKAGES/$1
    rm -rf "$ROOT"
    mkdir -p "$ROOT"
}

# One file, the same for the same commit: its times are the commit's.
end_package() {
    local name
    name=$(basename "$ROOT")
    dpkg-deb --root-owner-group --build "$ROOT" "$PACKAGES" >/dev/null
    rm -r "$ROOT"
    say "  $PACKAGES/${name}_$(package_version)_$(dpkg --print-architecture).deb"
}

# The library is for any glibc from 2.17 on, whatever built it.
package_library() {
    local built=$1
    begin_package librdmesh
    put 755 "$built"/librdmesh.so "$built"/librdmesh-sockets.so "$built"/librdmesh-mpi.so /usr/lib/rdmesh
    put 644 include/*.h /usr/include
    control librdmesh 'libc6 (>= 2.17)' 'ibverbs-providers, libibverbs1, librdmacm1' 'RDMA device for unprivileged programs: the library' \
        'Loaded into programs, which see an RDMA device and faster sockets through it; and the headers of its chains.'
    end_package
}

package_router() {
    local built=$1
    begin_package rdmesh
    put 755 "$built"/rdmesh "$built"/rdmesh-runtime /usr/bin
    put 755 "$built"/rdmesh-cni /usr/lib/cni
    put 644 packaging/rdmesh.service /usr/lib/systemd/system
    put 644 packaging/config.toml /etc/rdmesh
    put 644 packaging/sysctl.d/60-rdmesh.conf /usr/lib/sysctl.d
    put 644 docs/reference/*.1 /usr/share/man/man1
    gzip -9n "$ROOT"/usr/share/man/man1/*
    install -d "$ROOT"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
    "$built/rdmesh" completion bash >"$ROOT/usr/share/bash-completion/completions/rdmesh"
    "$built/rdmesh" completion zsh >"$ROOT/usr/share/zsh/vendor-completions/_rdmesh"
    "$built/rdmesh" completion fish >"$ROOT/usr/share/fish/vendor_completions.d/rdmesh.fish"
    control rdmesh "libc6 (>= $(needed_libc "$built"/{rdmesh,rdmesh-runtime,rdmesh-cni})), librdmesh (= $(package_version))" \
        'iproute2, nftables' 'RDMA device for unprivileged programs: router and command line' \
        'A virtual RDMA device and faster sockets for every container, virtual machine and program of a host, without hardware.'
    printf '/etc/rdmesh/config.toml\n' >"$ROOT/DEBIAN/conffiles"
    put 755 packaging/debian/{postinst,prerm,postrm} /DEBIAN
    end_package
}

package_guest() {
    local built=$1
    begin_package rdmesh-guest
    put 755 "$built/rdmesh-guest" /usr/bin
    put 644 packaging/guest/rdmesh-guest.service /usr/lib/systemd/system
    sed -i 's#/usr/local/bin/#/usr/bin/#' "$ROOT/usr/lib/systemd/system/rdmesh-guest.service"
    control rdmesh-guest "libc6 (>= $(needed_libc "$built/rdmesh-guest"))" 'ibverbs-providers, kmod, libibverbs1, librdmacm1' \
        'RDMA device for programs of a virtual machine' 'For a virtual machine that "rdmesh vm" runs: its programs see the device of its host.'
    end_package
}

package_kubernetes() {
    local built=$1
    begin_package rdmesh-kubernetes
    put 755 "$built"/{rdmesh-device-plugin,rdmesh-dra-driver,rdmesh-network-policies} /usr/bin
    put 644 packaging/kubernetes/*.service /usr/lib/systemd/system
    put 644 packaging/kubernetes/*.yaml /usr/share/doc/rdmesh-kubernetes
    put 644 packaging/kubernetes/device-plugin.env /etc/rdmesh
    control rdmesh-kubernetes "libc6 (>= $(needed_libc "$built"/rdmesh-{device-plugin,dra-driver,network-policies})), rdmesh (= $(package_version))" '' \
        'RDMA device for pods of Kubernetes' 'For a node: its pods ask for endpoints as for other devices.'
    printf '/etc/rdmesh/device-plugin.env\n' >"$ROOT/DEBIAN/conffiles"
    end_package
}

package_documentation() {
    begin_package rdmesh-doc
    put 644 README.md SECURITY.md ARCHITECTURE.md CHANGELOG.md /usr/share/doc/rdmesh
    # Some are links to pages in the tree's root.
    find docs \( -name '*.md' -o -name '*.svg' -o -name '*.png' \) -exec cp --dereference --parents -t "$ROOT/usr/share/doc/rdmesh" {} +
    control rdmesh-doc '' '' 'RDMA device for unprivileged programs: documentation' 'The same pages as in the source, as text.'
    end_package
}

# build_packages FOLDER: of the product there; instead of all that were built before.
build_packages() {
    export SOURCE_DATE_EPOCH
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || printf '0')
    umask 022
    mkdir -p "$PACKAGES"
    rm -f "$PACKAGES"/*.deb
    package_library "$1"
    package_router "$1"
    package_guest "$1"
    package_kubernetes "$1"
    package_documentation
}

dev_package() {
    if [[ ${1:-} == --try ]]; then
        # shellcheck source=/dev/null
        . scripts/package-try.sh
        try_packages
        return
    fi
    need build
    need_packages binutils
    build_product release
    build_packages "$RDMESH_BIN"
}
