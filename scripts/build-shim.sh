#!/bin/sh
# build-shim.sh [PROFILE]: builds librdmesh.so so that it loads with glibc 2.17 and newer, and with musl, and prints its path.
# Needs cargo-zigbuild and ziglang from PyPI, which it puts into .cache/venv. Where they cannot be had it builds with
# the machine's own linker: the library then needs the machine's glibc or a newer one, and libgcc with musl.
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
    PATH="$venv/bin:$PATH" cargo zigbuild --quiet --profile "$profile" --package rdmesh-shim --lib --target "$triple.2.17" >&2
    library=$target_dir/$triple/$profile/librdmesh.so
else
    echo "build-shim: warning: no zig linker; the library will not load with an older glibc than this machine's" >&2
    cargo build --quiet --profile "$profile" --package rdmesh-shim --lib >&2
    library=$target_dir/$profile/librdmesh.so
fi
# A copy is changed: cargo's record of the linker's own output stays valid.
portable=$(dirname "$library")/portable
mkdir -p "$portable"
cp "$library" "$portable/librdmesh.so.new"
python3 scripts/forget-loader.py "$portable/librdmesh.so.new"
mv "$portable/librdmesh.so.new" "$portable/librdmesh.so"
case $portable in /*) echo "$portable/librdmesh.so" ;; *) echo "$PWD/$portable/librdmesh.so" ;; esac
