# Stock programs between two isolated endpoints, beside kernel TCP on the same work.
# shellcheck shell=bash
. scripts/build.sh
. scripts/watchdog.sh

# The demo takes three minutes, and building before it as long again.
DEMO_LIMIT=1800

DEMO_NET=demo
DEMO_SERVER=10.7.0.2
DEMO_CLIENT=10.7.0.3

# What runs a command where the server, or the client, is.
SERVER_RUN=() CLIENT_RUN=()
# Only in the background: it becomes the program.
in_server() { exec "${SERVER_RUN[@]}" "$@"; }
in_client() { "${CLIENT_RUN[@]}" "$@"; }

# listening PID PORT: whether a socket listens on PORT in the network namespace of PID.
listening() { grep -qsE ":$(printf '%04X' "$2") [0-9A-F]+:0000 0A" "/proc/$1/net/tcp" "/proc/$1/net/tcp6"; }

wait_listening() {
    local tries=0
    until listening "$1" "$2"; do
        kill -0 "$1" 2>/dev/null || die "the server ended: $(tail -n 5 "$LOGS/demo-server.log")"
        ((++tries < 1000)) || die "the server does not listen"
        sleep 0.01
    done
}

# pair PORT CLIENT-COMMAND -- SERVER-COMMAND: runs both sides; prints the client's output.
pair() {
    local port=$1 client=() server
    shift
    while [[ $1 != -- ]]; do client+=("$1") && shift; done
    shift
    in_server "$@" >"$LOGS/demo-server.log" 2>&1 &
    server=$!
    wait_listening $server "$port"
    in_client "${client[@]}" 2>"$LOGS/demo-client.log" || die "$(tail -n 10 "$LOGS/demo-client.log" "$LOGS/demo-server.log")"
    wait $server
}

# perftest PROGRAM OPTION...: the row of figures.
perftest() {
    local command=("$@" -F -p 18515)
    pair 18515 "${command[@]}" $DEMO_SERVER -- "${command[@]}" | awk '/^ *[0-9]+ +[0-9]+ +[0-9.]/ { print; exit }'
}
latency() { perftest "$@" -n 50000 | awk '{ print $5 }'; }
bandwidth() { perftest "$@" -N | awk '{ print $4 * 1.048576 }'; }
rate() { perftest "$@" -N | awk '{ print $5 }'; }

# qperf prints bandwidth in bytes and latency in microseconds with -u, with other units else: -uu -ub ask for plain ones.
tcp() {
    local client=(qperf -lp 19765 "$DEMO_SERVER" -t 2 "$@" quit)
    pair 19765 "${client[@]}" -- qperf -lp 19765
}
tcp_bandwidth() { tcp -m "$1" tcp_bw | awk '/bw +=/ { f = $4 ~ /^GB/ ? 1000 : $4 ~ /^KB/ ? 0.001 : 1; print $3 * f }'; }
tcp_latency() { tcp -m 2 tcp_lat | awk '/latency +=/ { f = $4 == "ms" ? 1000 : $4 == "ns" ? 0.001 : 1; print $3 * f }'; }

# compare WHAT UNIT NAME TCP PROGRAM OPTION...: measures and prints a row of the table. TCP may be several figures; the last
# is compared with.
compare() {
    local what=$1 unit=$2 name=$3 tcp=$4 value
    shift 4
    value=$("$what" "$@")
    awk -v n="$name" -v a="$value" -v tcp="$tcp" -v u="$unit" 'BEGIN {
        printf "  %-34s %10.2f %-5s", n, a, u
        if ((count = split(tcp, b, " ")) == 0) { printf "\n"; exit }
        for (i = 1; i <= count; i++) printf "%10.2f %-5s ", b[i], u
        if (a > b[count]) printf "%6.1f times higher\n", a / b[count]
        else printf "%6.1f times lower\n", b[count] / a
    }'
}

# show_ps RDMESH...: the output of `ps` during a transfer.
show_ps() {
    local server client
    in_server ib_write_bw -F -p 18515 -D 3 >"$LOGS/demo-server.log" 2>&1 &
    server=$!
    wait_listening $server 18515
    in_client ib_write_bw -F -p 18515 -D 3 $DEMO_SERVER >"$LOGS/demo-client.log" 2>&1 &
    client=$!
    # The client is there when the router lists its queue pair.
    until "$@" ps | grep -q 'RTS'; do kill -0 $client || die "$(cat "$LOGS/demo-client.log")"; done
    say "\$ rdmesh ps"
    "$@" ps
    wait $client $server
}

# figures LATENCY-OF-TCP BANDWIDTH-OF-TCP: the table; both are functions.
figures() {
    local size lower higher
    lower=$("$1")
    compare latency us "ib_send_lat, 2 B, half round trip" "$lower" ib_send_lat -s 2
    compare latency us "ib_write_lat, 2 B, half round trip" "$lower" ib_write_lat -s 2
    compare latency us "ib_send_lat -e (sleeping), 2 B" "$lower" ib_send_lat -s 2 -e
    compare latency us "ib_read_lat, 2 B, round trip" "" ib_read_lat -s 2
    compare latency us "ib_atomic_lat, round trip" "" ib_atomic_lat
    for size in 2048 8192 65536 1048576; do
        higher=$("$2" $size)
        compare bandwidth MB/s "ib_write_bw, $size B" "$higher" ib_write_bw -s $size -n 20000
    done
    compare bandwidth MB/s "ib_read_bw, 65536 B" "" ib_read_bw -s 65536 -n 20000
    compare rate M/s "ib_write_bw, 2 B, million messages" "" ib_write_bw -s 2 -n 500000
    say
    say "ibv_rc_pingpong with its data checked:"
    pair 18515 ibv_rc_pingpong -g 1 -c $DEMO_SERVER -- ibv_rc_pingpong -g 1 -c | grep -E 'bytes in|iters in'
}

one_host() {
    local endpoint=("$RDMESH" run --net "$DEMO_NET")
    SERVER_RUN=("${endpoint[@]}" --name server --ip "$DEMO_SERVER" --)
    CLIENT_RUN=("${endpoint[@]}" --name client --ip "$DEMO_CLIENT" --)
    step "starting the router" "$RDMESH" up
    say
    bold "The device that the stock ibv_devinfo sees in an endpoint"
    in_client ibv_devinfo | sed -n '/hca_id/,$p' | grep -E 'hca_id|transport|state|link_layer|active_mtu'
    say
    bold "Two endpoints, each in a network namespace of its own, seen by the router during a transfer"
    show_ps "$RDMESH"
    say
    bold "perftest through rdmesh, beside TCP through the kernel between the same two endpoints"
    printf '  %-34s %16s %16s\n' "" "rdmesh     " "kernel TCP     "
    figures tcp_latency tcp_bandwidth
    say
    step "stopping the router" "$RDMESH" down
}

# host N COMMAND...: on host 1 or 2, a network namespace each.
host() {
    local number=$1
    shift
    RDMESH_STATE=$RDMESH_STATE-$number nsenter --net="/run/netns/$DEMO_HOST$number" -- "$@"
}

make_hosts() {
    local number
    for number in 1 2; do
        ip netns add "$DEMO_HOST$number"
        ip -n "$DEMO_HOST$number" link set lo up
    done
    ip -n "${DEMO_HOST}1" link add eth0 mtu 9000 type veth peer name eth0 mtu 9000 netns "${DEMO_HOST}2"
    for number in 1 2; do
        ip -n "$DEMO_HOST$number" address add 192.0.2.$number/24 dev eth0
        ip -n "$DEMO_HOST$number" link set eth0 up
    done
    cat >"$RDMESH_STATE/peers.json" <<END
{ "hosts": [
    { "name": "host1", "address": "192.0.2.1",
      "endpoints": [{ "network": "$DEMO_NET", "vni": 7, "addresses": ["$DEMO_SERVER"] }] },
    { "name": "host2", "address": "192.0.2.2",
      "endpoints": [{ "network": "$DEMO_NET", "vni": 7, "addresses": ["$DEMO_CLIENT"] }] } ] }
END
    (umask 077 && "$RDMESH" peer key >"$RDMESH_STATE/mesh.key")
    for number in 1 2; do
        host $number "$RDMESH" up --host host$number --underlay 192.0.2.$number --peers "$RDMESH_STATE/peers.json" \
            --key "$RDMESH_STATE/mesh.key"
    done
}

end_hosts() {
    local number
    for number in 1 2; do
        host $number "$RDMESH" down || true
        ip netns delete "$DEMO_HOST$number" || true
        rm -rf "$RDMESH_STATE-$number"
    done
}

# between_hosts COMMAND...: with TCP between the hosts themselves, without rdmesh and without an overlay.
between_hosts() {
    local SERVER_RUN=(nsenter "--net=/run/netns/${DEMO_HOST}1" --) CLIENT_RUN=(nsenter "--net=/run/netns/${DEMO_HOST}2" --)
    local DEMO_SERVER=192.0.2.1
    "$@"
}
both_tcp_latencies() { echo "$(tcp_latency) $(between_hosts tcp_latency)"; }
both_tcp_bandwidths() { echo "$(tcp_bandwidth "$1") $(between_hosts tcp_bandwidth "$1")"; }

two_hosts() {
    local state number
    bold "Two hosts, each a network namespace with a router, joined by a veth pair"
    step "starting the routers" make_hosts
    for number in 1 2; do
        state=(env "RDMESH_STATE=$RDMESH_STATE-$number" nsenter "--net=/run/netns/$DEMO_HOST$number" -- "$RDMESH")
        if ((number == 1)); then
            SERVER_RUN=("${state[@]}" run --net "$DEMO_NET" --name server --ip "$DEMO_SERVER" --)
        else
            CLIENT_RUN=("${state[@]}" run --net "$DEMO_NET" --name client --ip "$DEMO_CLIENT" --)
        fi
    done
    say
    bold "Two endpoints on different hosts, seen by the client's router during a transfer"
    show_ps host 2 "$RDMESH"
    say
    bold "perftest through rdmesh, beside kernel TCP between the endpoints (VXLAN) and between the bare hosts"
    printf '  %-34s %16s %16s %16s\n' "" "rdmesh     " "TCP, VXLAN    " "TCP, hosts    "
    figures both_tcp_latencies both_tcp_bandwidths
    say
    step "stopping the routers" end_hosts
}

clean_up() {
    "$RDMESH" down >/dev/null 2>&1 || true
    end_hosts >/dev/null 2>&1
    rm -rf "$RDMESH_STATE"
}

dev_demo() {
    [[ $(id -u) == 0 ]] || die "the demo makes network namespaces: run it as root (or see the README for use without root)"
    # shellcheck disable=SC2016 # the inner shell's variables
    guarded $DEMO_LIMIT "the demo" bash -euo pipefail -c '. scripts/lib.sh && . scripts/demo.sh && show_demo'
}

show_demo() {
    need run
    build_product release
    RDMESH=$RDMESH_BIN/rdmesh
    RDMESH_STATE=$(mktemp -d /tmp/rdmesh-demo.XXXXXX)
    export RDMESH_STATE
    DEMO_HOST=rdmesh-demo-$$-
    trap clean_up EXIT
    one_host
    say
    two_hosts
}
