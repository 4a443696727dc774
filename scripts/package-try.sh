# Installs the packages of target/packages on this machine, uses them, upgrades and removes them: for a fresh Debian only,
# where whatever is left afterwards is theirs.
# shellcheck shell=bash
. scripts/setup.sh

UNIT=/usr/lib/systemd/system/rdmesh.service

# All files but those of dpkg, apt and others that keep accounts.
installed_files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path "$PWD" -o -path /var/lib/dpkg -o -path /var/log \
        -o -path /var/cache -o -path /var/lib/apt \) -prune -o -print | sort
}

unit_setting() { sed -n "s/^$1=//p" "$UNIT"; }

# The unit's command with the unit's capabilities, and no way to more.
start_router() {
    local capabilities command
    capabilities=$(unit_setting CapabilityBoundingSet | tr 'A-Z ' 'a-z,' | sed 's/cap_/+/g')
    command=$(unit_setting ExecStart)
    mkdir -p /run/rdmesh
    # shellcheck disable=SC2086 # words
    setpriv --bounding-set "-all,$capabilities" --no-new-privs $command &
    ROUTER=$!
    timeout 20 bash -c 'until rdmesh ps >/dev/null 2>&1; do sleep 0.1; done'
}

# Two endpoints with stock programs, one of another user, an endpoint of that user, and a pool: what the capabilities are for.
use_product() {
    local server=(rdmesh run --name a --net blue --ip 10.7.0.2 -- ib_write_bw -n 1000)
    "${server[@]}" >/dev/null &
    timeout 20 bash -c 'until rdmesh ps | grep -q ib_write_bw; do sleep 0.1; done'
    rdmesh run --name b --net blue --ip 10.7.0.3 --accel -- setpriv --reuid 65534 --regid 65534 --clear-groups ib_write_bw -n 1000 10.7.0.2 |
        grep 65536
    rdmesh endpoint add c --net blue --uid 65534
    rdmesh endpoint rm c --net blue
    rdmesh pool create functions --size 4
    rdmesh run --pool functions -- true
    rdmesh pool rm functions
    rdmesh doctor >/dev/null || true
}

# The device plugin as its unit runs it, without any capability, where there is no kubelet.
try_device_plugin() {
    local networks said
    networks=$(sed -n 's/^RDMESH_PLUGIN_NETWORKS=//p' /etc/rdmesh/device-plugin.env)
    said=$(RDMESH_PLUGIN_NETWORKS=$networks timeout 5 setpriv --bounding-set -all --no-new-privs rdmesh-device-plugin 2>&1) || true
    grep -q "no kubelet to offer .rdmesh.dev/default. to" <<<"$said" || die "the device plugin says: $said"
}

# The DRA driver as its unit runs it, where there is no API server.
try_dra_driver() {
    local said folder
    folder=$(mktemp -d)
    printf 'apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]\nusers: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n' >"$folder/kubeconfig"
    said=$(KUBECONFIG=$folder/kubeconfig RDMESH_PLUGIN_NETWORKS=default timeout 5 setpriv --bounding-set -all --no-new-privs \
        rdmesh-dra-driver --kubelet-dir "$folder" 2>&1) || true
    rm -r "$folder"
    grep -q "cannot publish the node's devices" <<<"$said" || die "the DRA driver says: $said"
}

try_packages() {
    local before version
    need_packages util-linux "${PACKAGES_RUN[@]}"
    before=$(installed_files)
    step "installing" apt_install ./target/packages/*.deb
    step "the manual and completion" test -s /usr/share/man/man1/rdmesh-up.1.gz -a -s /usr/share/bash-completion/completions/rdmesh
    printf '\nmode = "sleep"\n' >>/etc/rdmesh/config.toml
    step "the unit's command" start_router
    step "programs on two endpoints, a pool" use_product
    step "the device plugin's command" try_device_plugin
    step "the DRA driver's command" try_dra_driver
    version=$(dpkg-query -W -f '${Version}' rdmesh)
    step "upgrading from $version beside the router" apt_install ./target/packages/newer/*.deb
    [[ $(dpkg-query -W -f '${Version}' rdmesh) != "$version" ]] || die "the version is still $version"
    grep -q '^mode = "sleep"' /etc/rdmesh/config.toml || die "the upgrade has lost the settings"
    rdmesh ps >/dev/null || die "the router does not answer a newer command line"
    step "removing" apt-get purge -y rdmesh librdmesh rdmesh-guest rdmesh-kubernetes rdmesh-doc
    wait "$ROUTER" || die "the router has failed"
    diff <(printf '%s\n' "$before") <(installed_files) || die "these files are left"
    say "  nothing is left"
}
