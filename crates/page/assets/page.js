// The page of `rdmesh page`: asks for a snapshot of the router every two seconds, and shows it and what has changed since the last.

import { LiveTable, element } from "./table.js";

const PAUSE = 2000;
const CHART_POINTS = 90;

const bytes = (count) => scaled(count, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
const bits = (count) => scaled(count, 1000, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"]);
const microseconds = (seconds) => (seconds < 0.1 ? `${(seconds * 1e6).toFixed(1)} µs` : `${(seconds * 1e3).toFixed(1)} ms`);
const perSecond = (count) => `${bytes(count)}/s`;
const share = (part) => `${Math.round(part * 100)} %`;
const rounded = (count) => Math.round(count).toLocaleString("en");

function scaled(count, step, units) {
  let at = 0;
  for (; count >= step && at < units.length - 1; at++) count /= step;
  return `${at === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)} ${units[at]}`;
}

const qpKey = (context, qp) => `${context.network}/${context.endpoint}/${context.device}/${qp.qpn}`;
const COUNTERS = ["sent_bytes", "sent_messages", "received_bytes", "received_messages", "retransmitted"];

// Queue pairs with what they have done a second since the snapshot before.
function queuePairs(snapshot, before, seconds) {
  const earlier = new Map();
  for (const context of before?.contexts ?? []) for (const qp of context.qps) earlier.set(qpKey(context, qp), qp);
  return snapshot.contexts.flatMap((context) =>
    context.qps.map((qp) => {
      const key = qpKey(context, qp);
      const last = earlier.get(key) ?? qp;
      const rates = COUNTERS.map((name) => [name, before ? Math.max(0, qp[name] - last[name]) / seconds : 0]);
      return { key, context, qp, rates: Object.fromEntries(rates) };
    }),
  );
}

const LEVELS = ["host", "tenant", "endpoint", "qp"];

// The level of a policy that has held an endpoint's queue pairs most since the snapshot before, and for which share of the time.
function heldBy(held, before, seconds) {
  let most = { level: null, share: 0 };
  for (const level of LEVELS) {
    const part = Math.max(0, (held?.[level] ?? 0) - (before?.[level] ?? 0)) / seconds;
    if (part > most.share) most = { level, share: Math.min(part, 1) };
  }
  return most;
}

function endpoints(snapshot, before, seconds, pairs) {
  const tenants = new Map(snapshot.networks.map((network) => [network.name, network.tenant]));
  const rows = new Map();
  for (const endpoint of snapshot.endpoints) {
    const key = `${endpoint.network}/${endpoint.name}`;
    const rates = Object.fromEntries(COUNTERS.map((name) => [name, 0]));
    rows.set(key, { key, endpoint, tenant: tenants.get(endpoint.network) ?? "", programs: new Set(), paths: new Set(), pairs: 0, rates, held: { level: null, share: 0 } });
  }
  const heldBefore = new Map((before?.contexts ?? []).map((context) => [`${context.network}/${context.endpoint}`, context.held]));
  for (const context of snapshot.contexts) {
    const row = rows.get(`${context.network}/${context.endpoint}`);
    if (!row) continue;
    row.programs.add(context.command);
    row.pairs += context.qps.length;
    if (before) row.held = heldBy(context.held, heldBefore.get(row.key) ?? context.held, seconds);
  }
  for (const { context, qp, rates } of pairs) {
    const row = rows.get(`${context.network}/${context.endpoint}`);
    if (!row) continue;
    for (const name of COUNTERS) row.rates[name] += rates[name];
    if (qp.path) row.paths.add(qp.path.split(" ")[0]);
  }
  return [...rows.values()];
}

function hosts(snapshot, pairs) {
  const own = { name: snapshot.status.host, address: snapshot.status.underlay, tunnel: "this host", refused: 0, unsent: 0, sent: null };
  const others = snapshot.tunnel.hosts.map((host) => {
    const sent = pairs.filter(({ qp }) => qp.path === `host ${host.address}`).reduce((sum, { rates }) => sum + rates.sent_bytes, 0);
    const refused = host.unsealed + host.unknown_session + host.wrong_tag + host.replayed + host.other_key;
    const open = host.sends && host.receives ? "open" : host.sends ? "only to it" : host.receives ? "only from it" : "not open";
    return { name: host.name, address: host.address, tunnel: snapshot.tunnel.is_authenticated ? open : "not authenticated", refused, unsent: host.unsent, sent };
  });
  return [own, ...others];
}

const rate = (limit) => {
  if (!limit) return null;
  const parts = [limit.bits_per_second && bits(limit.bits_per_second), limit.messages_per_second && `${rounded(limit.messages_per_second)} messages/s`];
  return parts.filter(Boolean).join(", ") || null;
};

const tables = {};

function makeTables(parent) {
  const rates = [
    { title: "Sent", value: (row) => row.rates.sent_bytes, text: perSecond },
    { title: "Messages/s", value: (row) => row.rates.sent_messages, text: rounded },
    { title: "Received", value: (row) => row.rates.received_bytes, text: perSecond },
    { title: "Retransmitted/s", value: (row) => row.rates.retransmitted, text: rounded },
  ];
  const definitions = {
    endpoints: {
      title: "Endpoints of this host",
      nothing: "No endpoint: `rdmesh run` makes one for a program, `rdmesh endpoint add` one that stays.",
      key: (row) => row.key,
      sortBy: "Sent",
      descending: true,
      columns: [
        { title: "Network", value: (row) => row.endpoint.network },
        { title: "Endpoint", value: (row) => row.endpoint.name },
        { title: "Addresses", value: (row) => row.endpoint.addresses.join(" ") },
        { title: "Tenant", value: (row) => row.tenant },
        { title: "Programs", value: (row) => [...row.programs].join(" ") },
        { title: "QPs", value: (row) => row.pairs },
        { title: "Paths", value: (row) => [...row.paths].sort().join(" ") },
        ...rates,
        { title: "Held by a rate", value: (row) => (row.held.level ? `${share(row.held.share)} ${row.held.level}` : ""), className: (row) => (row.held.share > 0.5 ? "warn" : "") },
      ],
    },
    pairs: {
      title: "Queue pairs",
      nothing: "No program has a queue pair.",
      key: (row) => row.key,
      sortBy: "Sent",
      descending: true,
      columns: [
        { title: "Endpoint", value: (row) => `${row.context.network}/${row.context.endpoint}` },
        { title: "Program", value: (row) => `${row.context.command} ${row.context.pid}` },
        { title: "QPN", value: (row) => row.qp.qpn, text: (qpn) => `0x${qpn.toString(16)}` },
        { title: "Kind", value: (row) => row.qp.kind },
        { title: "State", value: (row) => row.qp.state, className: (row) => (row.qp.state === "ERROR" ? "error" : "") },
        { title: "Peer", value: (row) => row.qp.peer },
        { title: "Path", value: (row) => row.qp.path },
        { title: "Round trip", value: (row) => row.qp.congestion?.round_trip_seconds ?? null, text: microseconds },
        ...rates,
        { title: "Retransmitted", value: (row) => row.qp.retransmitted },
        { title: "RNR NAKs", value: (row) => row.qp.rnr_naks },
      ],
    },
    hosts: {
      title: "Hosts",
      nothing: "",
      key: (row) => row.name,
      columns: [
        { title: "Host", value: (row) => row.name },
        { title: "Address", value: (row) => row.address },
        { title: "Tunnel", value: (row) => row.tunnel, className: (row) => (["this host", "open"].includes(row.tunnel) ? "" : "warn") },
        { title: "Sent there", value: (row) => row.sent, text: perSecond },
        { title: "Refused packets", value: (row) => row.refused },
        { title: "Unsent packets", value: (row) => row.unsent },
      ],
    },
    networks: {
      title: "Networks",
      nothing: "No network.",
      key: (row) => row.name,
      columns: [
        { title: "Network", value: (row) => row.name },
        { title: "VNI", value: (row) => row.vni },
        { title: "Subnets", value: (row) => row.subnets.join(" ") },
        { title: "Tenant", value: (row) => row.tenant },
      ],
    },
    limits: {
      title: "Policies",
      nothing: "No policy: all share alike, without a rate. `rdmesh policy set` sets one.",
      key: (row) => row.scope,
      columns: [
        { title: "Scope", value: (row) => row.scope },
        { title: "Rate", value: (row) => rate(row.policy?.rate) },
        { title: "Rate of a QP", value: (row) => rate(row.policy?.qp_rate) },
        { title: "Priority", value: (row) => row.policy?.priority ?? null },
        { title: "Weight", value: (row) => row.policy?.weight ?? null },
      ],
    },
    chains: {
      title: "Chains",
      nothing: "No program has managed queues.",
      key: (row) => `${row.network}/${row.endpoint}/${row.device}/${row.group}`,
      columns: [
        { title: "Endpoint", value: (row) => `${row.network}/${row.endpoint}` },
        { title: "Program", value: (row) => `${row.command} ${row.pid}` },
        { title: "Group", value: (row) => row.group },
        { title: "State", value: (row) => row.state, className: (row) => (row.fault ? "error" : "") },
        { title: "Steps", value: (row) => row.steps },
        { title: "Bytes", value: (row) => row.bytes, text: bytes },
        { title: "Stood still", value: (row) => row.starved },
      ],
    },
    events: {
      title: "Latest events",
      nothing: "Nothing has happened yet.",
      key: (row) => row.number,
      sortBy: "Time (UTC)",
      descending: true,
      columns: [
        { title: "Time (UTC)", value: (row) => row.time.replace("T", " ").slice(0, 19) },
        { title: "Level", value: (row) => row.level, className: (row) => (row.level === "info" ? "" : row.level) },
        { title: "What", value: (row) => row.what },
        { title: "About", value: (row) => Object.entries(row.about).map(([name, value]) => `${name}=${value}`).join(" ") },
      ],
    },
  };
  const parts = document.getElementById("parts");
  for (const [id, definition] of Object.entries(definitions)) {
    tables[id] = new LiveTable(parent, { id, ...definition });
    parts.append(element("a", { href: `#${id}` }, definition.title));
  }
}

function showFigures(snapshot, rows, pairs) {
  const sum = (name) => pairs.reduce((total, { rates }) => total + rates[name], 0);
  const counter = (name) => snapshot.counters.find((metric) => metric.name === name)?.value ?? 0;
  const figures = [
    ["Endpoints", rounded(rows.length)],
    ["Programs", rounded(snapshot.contexts.length)],
    ["Queue pairs", rounded(pairs.length)],
    ["Sent", perSecond(sum("sent_bytes"))],
    ["Messages sent", `${rounded(sum("sent_messages"))}/s`],
    ["Received", perSecond(sum("received_bytes"))],
    ["Retransmitted", `${rounded(sum("retransmitted"))}/s`],
    ["Held by a rate", rounded(rows.filter((row) => row.held.share > 0.5).length)],
    ["Refused by quota", rounded(counter("rdmesh_refused_by_quota_total"))],
    ["Sockets by RDMA, sent", bytes(counter("rdmesh_relay_sent_bytes_total"))],
  ];
  const list = document.getElementById("figures");
  if (list.children.length === 0) {
    for (const [title] of figures) {
      const pair = list.appendChild(element("div"));
      pair.append(element("dt", {}, title), element("dd"));
    }
  }
  figures.forEach(([, text], at) => (list.children[at].lastChild.textContent = text));
  return sum("sent_bytes");
}

const history = [];

function drawChart(sent) {
  history.push(sent);
  if (history.length > CHART_POINTS) history.shift();
  const most = Math.max(...history, 1);
  const points = history.map((value, at) => `${((at + CHART_POINTS - history.length) * 600) / (CHART_POINTS - 1)},${78 - (value / most) * 74}`);
  const chart = document.getElementById("chart");
  const line = chart.firstElementChild ?? chart.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "polyline"));
  line.setAttribute("points", points.join(" "));
  document.getElementById("chart-caption").textContent = `Bytes sent a second by all endpoints, in the last ${(CHART_POINTS * PAUSE) / 60000} minutes; at most ${perSecond(Math.max(...history))}`;
}

let last = null;

function show(snapshot) {
  const time = performance.now();
  const seconds = last ? (time - last.time) / 1000 : 1;
  const before = last?.snapshot;
  last = { time, snapshot };
  const { status } = snapshot;
  document.getElementById("host").textContent = `on ${status.host}`;
  document.title = `rdmesh on ${status.host}`;
  const pairs = queuePairs(snapshot, before, seconds);
  const rows = endpoints(snapshot, before, seconds, pairs);
  const sent = showFigures(snapshot, rows, pairs);
  if (before) drawChart(sent);
  last.rows = {
    endpoints: rows,
    pairs,
    hosts: hosts(snapshot, pairs),
    networks: snapshot.networks,
    limits: snapshot.policies,
    chains: snapshot.chains,
    events: snapshot.events.events,
  };
  fillTables();
}

function fillTables() {
  const filter = document.getElementById("filter").value;
  for (const [id, rows] of Object.entries(last?.rows ?? {})) tables[id].fill(rows, filter);
}

// Told once, when it changes: what is read out at each refresh is not listened to.
function tell(text, isBroken) {
  const state = document.getElementById("state");
  if (state.textContent !== text) state.textContent = text;
  state.classList.toggle("broken", isBroken);
}

async function refresh() {
  try {
    const answer = await fetch("snapshot.json");
    if (!answer.ok) throw new Error(await answer.text());
    const snapshot = await answer.json();
    show(snapshot);
    const store = snapshot.status.store;
    const storeFails = store && !store.answers;
    tell(`version ${snapshot.status.version}, workers: ${snapshot.status.workers} (${snapshot.status.mode})${storeFails ? "; the cluster's store does not answer" : ""}`, Boolean(storeFails));
  } catch (error) {
    const cause = error instanceof TypeError ? "`rdmesh page` has ended: start it again" : error.message.trim();
    tell(`Not up to date: ${cause}`, true);
  }
  setTimeout(refresh, PAUSE);
}

makeTables(document.getElementById("tables"));
const filter = document.getElementById("filter");
filter.addEventListener("input", fillTables);
document.getElementById("search").addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== filter) {
    event.preventDefault();
    filter.focus();
  }
});
refresh();
