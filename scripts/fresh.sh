# Any verb in a fresh root file system of this Debian release, in which only the verb's own packages are installed: a
# dependency that a new machine lacks fails here. The base is made once by debootstrap and kept in the user's cache folder.
# shellcheck shell=bash
. scripts/setup.sh

FRESH_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/rdmesh/fresh
# Of this machine only how it reaches the package registries is taken over: apt's sources, certificates, names, variables.
FRESH_SETTINGS=(/etc/resolv.conf /etc/hosts /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources /etc/apt/auth.conf.d
    /etc/apt/trusted.gpg.d /etc/ssl/certs /usr/local/share/ca-certificates)
FRESH_VARIABLES='^(CI|TERM|RDMESH_GUARD|RDMESH_TEST_ALL|RDMESH_BENCH_PROFILE|[a-z]+_proxy|[A-Z]+_PROXY|PIP_.*|CARGO_(HTTP|NET|REGISTRIES|SOURCE)_.*|[A-Z_]*(CERT|CAINFO|CA_BUNDLE)[A-Z_]*)='

fresh_usage() {
    cat <<'END'
usage: ./dev fresh [--with-target] VERB [ARGUMENT...]

  Runs a verb of ./dev in a fresh root file system. It sees the working tree's files, and changes nothing in it.

  --with-target   what is built already (target/) is there too: quicker, for the run-time packages only
END
}

debian_release() { (. /etc/os-release && printf '%s\n' "$VERSION_CODENAME"); }

make_base() {
    local base=$1
    rm -rf "$base.new" && mkdir -p "$base.new" &&
        debootstrap --variant=minbase --include=ca-certificates,sudo "$(debian_release)" "$base.new" "$(debian_mirror)" &&
        rm -rf "$base.new"/var/cache/apt/archives/*.deb && mv "$base.new" "$base"
}

copy_settings() {
    local root=$1 path
    for path in "${FRESH_SETTINGS[@]}"; do
        if [[ -e $path ]]; then
            mkdir -p "$root$(dirname "$path")" && cp -a -T "$(readlink -f "$path")" "$root$path"
        fi
    done
    # apt's own options, but not those that a container image uses to throw away what was downloaded.
    apt-config dump | grep -E '^Acquire::' >"$root/etc/apt/apt.conf.d/90host" || true
}

# The files of the working tree, at the path that they have here.
copy_tree() {
    local into=$1$PWD
    # A file that was deleted and not committed is not there to be read.
    mkdir -p "$into" && git ls-files -z --cached --others --exclude-standard --deduplicate |
        tar --null --ignore-failed-read -T - -cf - 2>/dev/null | tar -xf - -C "$into"
}

# A toolchain that is here is used there: rustup would bring the same one. Downloads of crates are kept.
mount_toolchain() {
    local root=$1 cargo=${CARGO_HOME:-$HOME/.cargo} rustup=${RUSTUP_HOME:-$HOME/.rustup}
    [[ -x $cargo/bin/cargo && -d $rustup ]] || return 0
    mkdir -p "$root/root/.rustup" "$root/root/.cargo/bin" "$root/root/.cargo/registry" "$cargo/registry"
    mount --bind -o ro "$rustup" "$root/root/.rustup" && mount --bind -o ro "$cargo/bin" "$root/root/.cargo/bin" &&
        mount --bind "$cargo/registry" "$root/root/.cargo/registry"
}

mount_root() {
    local root=$1 with_target=$2
    mount -t overlay overlay -o "lowerdir=$root.base,upperdir=$root.upper,workdir=$root.work" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/run"
    mkdir -p "$FRESH_CACHE/archives/partial"
    mount --bind "$FRESH_CACHE/archives" "$root/var/cache/apt/archives"
    copy_settings "$root"
    mount_toolchain "$root"
    if [[ $with_target == yes ]]; then
        mkdir -p "$root$PWD" "$root.tree-upper" "$root.tree-work"
        mount -t overlay overlay -o "lowerdir=$PWD,upperdir=$root.tree-upper,workdir=$root.tree-work" "$root$PWD"
        # The tools of a virtual environment are this machine's Python's.
        rm -rf "$root$PWD/.cache"
    else
        copy_tree "$root"
    fi
}

# In mount and process namespaces of its own, which end with it. A changed root would not do: there the kernel refuses user
# namespaces, so the root file system is exchanged.
fresh_inside() {
    local root=$1 with_target=$2 tree=$PWD variables built=${RDMESH_BIN:-$PWD/target/release}
    shift 2
    mount --make-rprivate /
    mount_root "$root" "$with_target"
    mapfile -t variables < <(env | grep -E "$FRESH_VARIABLES")
    if [[ $with_target == yes ]]; then variables+=("RDMESH_BUILT=${built#"$PWD/"}"); fi
    mkdir -p "$root/mnt"
    cd "$root" && pivot_root . mnt && cd "$tree" && umount --lazy /mnt
    exec /usr/bin/env -i HOME=/root USER=root LANG=C.UTF-8 \
        PATH=/root/.cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${variables[@]}" ./dev "$@"
}

dev_fresh() {
    local with_target=no base root status=0
    if [[ ${1:-} == --with-target ]]; then
        with_target=yes
        shift
    fi
    if (($# == 0)) || [[ $1 == -* ]]; then
        fresh_usage
        exit 2
    fi
    [[ $(id -u) == 0 ]] || die "a fresh root file system is made by root"
    need_packages debootstrap git
    base=$FRESH_CACHE/base-$(debian_release)
    mkdir -p "$FRESH_CACHE"
    if [[ ! -d $base ]]; then
        step "making a Debian $(debian_release) from nothing" make_base "$base"
    fi
    root=$(mktemp -d "$FRESH_CACHE/root.XXXXXX")
    mkdir "$root.upper" "$root.work"
    ln -s "$base" "$root.base"
    unshare --mount --pid --fork --kill-child \
        bash -euo pipefail -c '. scripts/lib.sh && . scripts/fresh.sh && fresh_inside "$@"' bash "$root" "$with_target" "$@" || status=$?
    rm -rf "$root" "$root".{upper,work,base,tree-upper,tree-work}
    return $status
}
