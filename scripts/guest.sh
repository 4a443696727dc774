# A virtual machine with Debian's own kernel and its rdma_rxe, as a peer for tests: kernel and initramfs, made once and
# kept in the user's cache folder.
# shellcheck shell=bash
. scripts/setup.sh

GUEST_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/rdmesh/guest
GUEST_MODULES=(virtio_pci virtio_net virtio_console crc32_generic rdma_rxe ib_uverbs rdma_ucm sch_ingress act_gact cls_u32)
# Of a guest without a device of its own, whose programs use the host's; its file system is the host's.
VM_MODULES=(virtio_pci virtio_net virtio_console 9p 9pnet_virtio overlay vmw_vsock_virtio_transport)
GUEST_PROGRAMS=(ip tc rdma ibv_devinfo ibv_{rc,uc,ud,srq}_pingpong ib_{send,write,read,atomic}_{bw,lat}
    rping ucmatose udaddy rdma_{server,client})
GUEST_FILES=(target/test-programs/{agent,exchange,connect} tests/guest/init tests/guest/vm-init scripts/guest.sh)

guest_kernel_package() {
    apt-cache depends --important linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: //p' | head -n 1
}

guest_kernel_version() {
    apt-cache show --no-all-versions "$1" 2>/dev/null | sed -n 's/^Version: //p' | head -n 1
}

# Only the parts of the kernel's package that some needed module may depend on.
unpack_guest_kernel() {
    local deb=$1 to=$2
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$to" --wildcards './boot/vmlinuz-*' \
        './lib/modules/*/modules.*' './lib/modules/*/kernel/'{crypto,lib,net,fs/{configfs,9p,netfs,fscache,overlayfs},drivers/{char,infiniband,virtio}} \
        './lib/modules/*/kernel/drivers/net/'{virtio_net,net_failover}'.ko*'
}

# The kernel as an ELF file boots three times as fast as the compressed one, which works too.
extract_vmlinux() {
    local vmlinuz=$1 to=$2 offset
    offset=$(LC_ALL=C grep -aobP '\xfd7zXZ\x00' "$vmlinuz" | head -n 1 | cut -d : -f 1)
    # What follows the compressed stream is not of xz's format, which it says and which does no harm.
    if [[ -z $offset ]] || { tail -c +$((offset + 1)) "$vmlinuz" | xz -dc 2>/dev/null || true; } >"$to" &&
        [[ $(head -c 4 "$to") != $'\x7fELF' ]]; then
        cp "$vmlinuz" "$to"
    fi
}

# The needed modules, decompressed, and `list`, their names in the order of loading.
pick_guest_modules() {
    local from=$1 to=$2 release=$3 module path name
    shift 3
    mkdir "$to"
    for module in "$@"; do
        modprobe -d "$from" -S "$release" --show-depends "$module"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r path; do
        name=$(basename "${path%.xz}")
        if [[ $path == *.xz ]]; then xz -dc "$path" >"$to/$name"; else cp "$path" "$to/$name"; fi
        printf '%s\n' "$name" >>"$to/list"
    done
}

fetch_guest_kernel() {
    local package=$1 folder=$2 work
    rm -rf "$folder.new"
    mkdir -p "$folder.new/unpacked"
    work=$(cd "$folder.new" && pwd)
    (cd "$work" && { apt-get download "$package" || { as_root apt-get update && apt-get download "$package"; }; }) || {
        say "the guest's kernel, $package, could not be downloaded: see that \`apt-get download $package\` works"
        return 1
    }
    unpack_guest_kernel "$work/$package"_*.deb "$work/unpacked"
    extract_vmlinux "$work"/unpacked/boot/vmlinuz-* "$work/vmlinux"
    depmod -b "$work/unpacked" "${package#linux-image-}"
    pick_guest_modules "$work/unpacked" "$work/modules" "${package#linux-image-}" "${GUEST_MODULES[@]}"
    pick_guest_modules "$work/unpacked" "$work/vm-modules" "${package#linux-image-}" "${VM_MODULES[@]}"
    rm -r "$work/unpacked" "$work/$package"_*.deb
    mv "$folder.new" "$folder"
}

# Programs and the libraries that they load; those behind dlopen too: the provider, and what ends threads.
guest_libraries() {
    local file
    for file in "$@" $(dpkg -L ibverbs-providers libgcc-s1 | grep -e '/librxe-.*\.so' -e '/libgcc_s\.so'); do
        printf '%s\n' "$file"
        ldd "$file" | awk '$2 == "=>" { print $3 } $1 ~ /^\// { print $1 }'
    done | sort -u
}

make_guest_initramfs() {
    local kernel=$1 to=$2 root name file programs=()
    root=$(mktemp -d)
    mkdir -p "$root"/{usr/{bin,sbin,lib,lib64},proc,sys,dev,tmp,run,etc/libibverbs.d}
    for name in bin sbin lib lib64; do ln -s "usr/$name" "$root/$name"; done
    for name in "${GUEST_PROGRAMS[@]}"; do programs+=("$(PATH=$PATH:/usr/sbin:/sbin command -v "$name")"); done
    guest_libraries "${programs[@]}" target/test-programs/{exchange,connect} | while read -r file; do
        [[ $file == target/* ]] || install -D "$file" "$root$file"
    done
    cp target/test-programs/{agent,exchange,connect} "$root/bin/"
    cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
    cp "$(command -v busybox)" "$root/bin/busybox"
    while read -r name; do ln -sf busybox "$root/bin/$name"; done < <(busybox --list | grep -vx -e busybox -e ip -e tc)
    cp tests/guest/init "$root/init"
    cp -r "$kernel/modules" "$root/modules"
    (cd "$root" && find . | cpio --quiet -o -H newc) >"$to.new.$$"
    rm -r "$root"
    mv "$to.new.$$" "$to"
}

# Of a guest whose file system is the host's.
make_vm_initramfs() {
    local kernel=$1 to=$2 root name
    root=$(mktemp -d)
    mkdir -p "$root"/{bin,proc,sys,dev,tmp,run,new}
    cp target/test-programs/agent "$root/bin/"
    cp "$(command -v busybox)" "$root/bin/busybox"
    busybox --list | while read -r name; do [[ -e $root/bin/$name ]] || ln -s busybox "$root/bin/$name"; done
    cp tests/guest/vm-init "$root/init"
    cp -r "$kernel/vm-modules" "$root/modules"
    (cd "$root" && find . | cpio --quiet -o -H newc) >"$to.new.$$"
    rm -r "$root"
    mv "$to.new.$$" "$to"
}

# What the initramfs is made from: when anything of it changes, it is made anew.
guest_recipe() {
    local packages=(busybox-static perftest ibverbs-utils ibverbs-providers libibverbs1 librdmacm1 rdmacm-utils iproute2 libc6)
    { cat "${GUEST_FILES[@]}" && dpkg-query -W "${packages[@]}"; } | sha256sum | cut -c 1-16
}

make_guest_programs() {
    flock target/test-programs.lock make --quiet -C tests/programs OUT="$PWD/target/test-programs"
}

# Sets RDMESH_GUEST to the folder with the guest's `vmlinux` and `initramfs`.
prepare_guest() {
    local package version kernel initramfs
    need build test guest
    package=$(guest_kernel_package)
    version=$(guest_kernel_version "$package")
    [[ -n $version ]] || die "apt knows no linux-image-amd64: the tests against a kernel's rdma_rxe need Debian (on x86-64) and its package lists (apt-get update)"
    # The last number is that of the choice of modules, to be raised when that changes.
    kernel=$GUEST_CACHE/${package}_${version}_2
    if [[ ! -d $kernel ]]; then step "downloading the guest's kernel, $package" fetch_guest_kernel "$package" "$kernel"; fi
    step "compiling the guest's programs" make_guest_programs
    initramfs=initramfs-$(guest_recipe)
    if [[ ! -e $kernel/$initramfs ]]; then
        rm -f "$kernel"/initramfs*
        rm -f "$kernel"/vm-initramfs
        step "making the guest's file system" make_guest_initramfs "$kernel" "$kernel/$initramfs"
    fi
    if [[ ! -e $kernel/vm-initramfs ]]; then make_vm_initramfs "$kernel" "$kernel/vm-initramfs"; fi
    ln -sfn "$initramfs" "$kernel/initramfs"
    export RDMESH_GUEST=$kernel
}
