#!/bin/sh
# build-shim.sh [PROFILE]: builds the preload libraries, librdmesh.so, librdmesh-sockets.so and librdmesh-mpi.so, so that they load with glibc 2.17
# and newer, and with musl, and the agent for virtual machines, rdmesh-guest, so that it runs with glibc 2.17 and newer; prints the
# folder that has them.
# Needs cargo-zigbuild and ziglang from PyPI, which it puts into .cache/venv. Where they cannot be had it builds with
# the machine's own linker: the libraries then need the machine's glibc or a newer one, and libgcc with musl.
set -eu
cd "$(dirname "$0")/.."
profile=${1:-release}
target_dir=${CARGO_TARGET_DIR:-target}
venv=$PWD/.cache/venv
triple=$(uname -m)-unknown-linux-gnu

install_zig() {
    [ -x "$venv/bin/cargo-zigbuild" ] && "$venv/bin/python" -c 'import ziglang' 2>/dev/null && return 0
    echo "build-shim: installing ziglang and cargo-zigbuild into $venv" >&2
    python3 -m venv "$venv" >&2 && "$venv/bin/pip" install --quiet ziglang cargo-zigbuild >&2
}

if install_zig; then
    PATH="$venv/bin:$PATH" cargo zigbuild --quiet --profile "$profile" --package rdmesh-shim --package rdmesh-sockets --package rdmesh-mpi --package rdmesh-vm \
        --lib --bin rdmesh-guest --target "$triple.2.17" >&2
    built=$target_dir/$triple/$profile
else
    echo "build-shim: warning: no zig linker; the libraries will not load with an older glibc than this machine's" >&2
    cargo build --quiet --profile "$profile" --package rdmesh-shim --package rdmesh-sockets --package rdmesh-mpi --package rdmesh-vm \
        --lib --bin rdmesh-guest >&2
    built=$target_dir/$profile
fi
# Copies are changed: cargo's record of the linker's own output stays valid.
portable=$built/portable
mkdir -p "$portable"
# Every endpoint has copies: the lines for debuggers, four fifths of a library, stay in the file that the linker wrote.
publish() {
    cp "$built/$1" "$portable/$2.new"
    if command -v strip >/dev/null; then strip --strip-debug "$portable/$2.new"; fi
    python3 scripts/forget-loader.py "$portable/$2.new"
    mv "$portable/$2.new" "$portable/$2"
}
publish librdmesh.so librdmesh.so
publish librdmesh_sockets.so librdmesh-sockets.so
publish librdmesh_mpi.so librdmesh-mpi.so
cp "$built/rdmesh-guest" "$portable/rdmesh-guest"
case $portable in /*) echo "$portable" ;; *) echo "$PWD/$portable" ;; esac
