//! `rdmesh up` and `rdmesh down`: starting and stopping the router.

use crate::args::{RouterOptions, STORE, UpOptions};
use crate::failure::Failure;
use crate::peer::read_key;
use crate::show::print_line;
use rdmesh_fabric::api::StoreAccess;
use rdmesh_fabric::{Client, ClientError, LOG, Name, Peers, StateDir};
use rdmesh_router::daemon::{DaemonConfig, SharedStore};
use rdmesh_router::events::EventLog;
use rdmesh_router::io::IoConfig;
use rdmesh_router::process;
use rdmesh_store_etcd::{EtcdConfig, EtcdStore};
use rustix::fs::{FlockOperation, OFlags, fcntl_setfl, flock};
use rustix::system::uname;
use std::fs::{self, File};
use std::io::{self, ErrorKind, IsTerminal};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// `rdmesh up`.
pub(crate) fn up(options: &UpOptions, state: &StateDir) -> Result<(), Failure> {
    check_options(&options.router)?;
    if options.foreground {
        return router(&options.router, state);
    }
    let client = Client::new(state.api_socket());
    match client.status() {
        Ok(status) => return print_line(format!("A router is already running (pid {}).", status.pid)),
        // Must not be mistaken for a directory of this user's own.
        Err(error @ (ClientError::State(_) | ClientError::Foreign { .. })) => return Err(error.into()),
        Err(_) => {}
    }
    if let Some(peers) = &options.router.peers {
        // Errors in it are reported here, not in a log.
        read_peers(peers)?;
    }
    options.router.key.as_deref().map(read_key).transpose()?;
    open_store(&options.router)?;
    let child = start(&options.router, state)?;
    let status = wait_until_up(child, &client, state)?;
    let workers = if status.workers == 1 { "1 worker".to_owned() } else { format!("{} workers", status.workers) };
    print_line(format!(
        "The router is running (pid {}, {workers}); its log is {}.",
        status.pid,
        state.log().display()
    ))?;
    if status.endpoints > 0 {
        let plural = if status.endpoints == 1 { " is" } else { "s are" };
        print_line(format!("The last one had died: its {} endpoint{plural} restored.", status.endpoints))?;
    }
    print_line("Next, each in a terminal of its own:")?;
    let (network, server) = if options.router.rootless { ("--host-network ", "localhost") } else { ("", "10.77.0.2") };
    print_line(format!("  rdmesh run {network}--name a -- ib_write_bw"))?;
    print_line(format!("  rdmesh run {network}--name b -- ib_write_bw {server}"))?;
    print_line("`rdmesh ps` shows what is going on, `rdmesh doctor` what is missing, `rdmesh down` ends it.")
}

/// The messages that a command which serves writes to its log.
pub(crate) fn log_filter() -> EnvFilter {
    EnvFilter::try_from_env("RDMESH_LOG").unwrap_or_else(|_| EnvFilter::new("info"))
}

/// `rdmesh router`.
pub(crate) fn router(options: &RouterOptions, state: &StateDir) -> Result<(), Failure> {
    check_options(options)?;
    if options.detached {
        rustix::process::setsid()?;
    }
    let ansi = std::io::stderr().is_terminal();
    let events = EventLog::default();
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(ansi).with_filter(log_filter());
    tracing_subscriber::registry().with(log).with(events.clone().with_filter(LevelFilter::INFO)).init();
    let config = DaemonConfig {
        state: state.clone(),
        mode: options.mode.into(),
        workers: options.workers.map(usize::from),
        rootless: options.rootless,
        library: None,
        host: options.host.clone().unwrap_or_else(|| Name::of_host(&uname().nodename().to_string_lossy())),
        peers: options.peers.as_deref().map_or(Ok(Peers::default()), read_peers)?,
        io: IoConfig {
            underlay: options.underlay,
            is_insecure: options.is_insecure(),
            faults: options.faults,
            native: options.native(),
        },
        firewall: options.firewall,
        keeps_endpoints: options.keep_endpoints,
        key: options.key.as_deref().map(read_key).transpose()?,
        store: open_store(options)?,
        local_path: options.local_path.into(),
        metrics: options.metrics,
        events,
    };
    Ok(process::run(config)?)
}

/// `rdmesh down`.
pub(crate) fn down(client: &Client, state: &StateDir) -> Result<(), Failure> {
    let is_held = |lock: &File| flock(lock, FlockOperation::NonBlockingLockShared).is_err();
    match state.check() {
        Err(error) if error.is_missing() => return print_line("No router is running."),
        checked => checked?,
    }
    // The lock shows whether there is a router: one that is starting, or ending, has it too.
    let lock = match File::open(state.lock()) {
        Ok(lock) if is_held(&lock) => lock,
        Ok(lock) => return forget_dead(lock, state),
        Err(error) if error.kind() == ErrorKind::NotFound => return print_line("No router is running."),
        // The lock is root's: a request to the router fails in the same way, with a remedy.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            client.shutdown()?;
            return Ok(());
        }
        Err(error) => return Err(Failure::new(format!("{}: {error}", state.lock().display()))),
    };
    match client.shutdown() {
        Err(ClientError::Unreachable { source, .. }) if source.kind() != ErrorKind::PermissionDenied => {}
        result => drop(result?),
    }
    // As long as it gets on: thousands of endpoints take their time.
    let count = || fs::read_dir(state.endpoints()).map(Iterator::count).unwrap_or_default();
    let (mut left, mut deadline) = (count(), Instant::now() + START_TIMEOUT);
    while is_held(&lock) {
        let now = count();
        if now < left {
            (left, deadline) = (now, Instant::now() + START_TIMEOUT);
        }
        if Instant::now() > deadline {
            let log = state.log();
            return Err(Failure::new(format!("the router does not end; {} may say why", log.display())));
        }
        sleep(STEP);
    }
    print_line("The router has ended; all endpoints are removed.")
}

/// Removes what a dead router would have removed at its end.
fn forget_dead(lock: File, state: &StateDir) -> Result<(), Failure> {
    drop(lock);
    match process::remove_leftovers(state)? {
        true => print_line("No router is running: it had died. What it left is removed."),
        false => print_line("No router is running."),
    }
}

fn read_peers(path: &Path) -> Result<Peers, Failure> {
    Peers::read(path).map_err(|why| Failure::new(format!("the peers file {}: {why}", path.display())))
}

/// The cluster's store, which is not connected to yet.
fn open_store(options: &RouterOptions) -> Result<Option<SharedStore>, Failure> {
    let Some(url) = &options.store else { return Ok(None) };
    let refused = |why| Failure::new(format!("--store: {why}"));
    let config = url.parse::<EtcdConfig>().map_err(refused)?;
    if config.is_open() {
        tracing::warn!(
            "--store names no user: whoever reaches the store may write, and so decide where addresses lead: give etcd users and passwords"
        );
    }
    let access = StoreAccess {
        members: config.members(),
        is_encrypted: config.is_encrypted(),
        is_authenticated: !config.is_open(),
    };
    let store = EtcdStore::new(&config).map_err(refused)?;
    Ok(Some(SharedStore::new(store, options.terms, access)))
}

fn check_options(options: &RouterOptions) -> Result<(), Failure> {
    if options.is_insecure() && options.key.is_some() {
        return Err(Failure::new("--underlay-security none uses no --key: leave one of them out"));
    }
    if options.rootless || rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::new(
        "endpoints with network namespaces need root: use `sudo rdmesh up`, or `rdmesh up --rootless` to do without them",
    ))
}

fn start(options: &RouterOptions, state: &StateDir) -> Result<Child, Failure> {
    let log = open_log(options, state)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--state-dir").arg(state.path()).args(["router", "--detached"]);
    if options.rootless {
        command.arg("--rootless");
    }
    if let Some(workers) = options.workers {
        command.args(["--workers", &workers.to_string()]);
    }
    if let Some(host) = &options.host {
        command.args(["--host", host.as_str()]);
    }
    let path = clap::ValueEnum::to_possible_value(&options.local_path).map(|value| value.get_name().to_owned());
    command.arg("--local-path").args(path);
    if let Some(underlay) = options.underlay {
        command.args(["--underlay", &underlay.to_string()]);
    }
    if let Some(peers) = &options.peers {
        command.arg("--peers").arg(fs::canonicalize(peers)?);
    }
    if let Some(store) = &options.store {
        // Others could read a password in it on the command line.
        command.env(STORE, store).args(["--terms", &options.terms.to_string()]);
    }
    if let Some(key) = &options.key {
        command.arg("--key").arg(fs::canonicalize(key)?);
    }
    if options.firewall {
        command.arg("--firewall");
    }
    if options.keep_endpoints {
        command.arg("--keep-endpoints");
    }
    if options.is_insecure() {
        command.args(["--underlay-security", "none"]);
    }
    if let Some(faults) = options.faults {
        command.args(["--faults", &faults.to_string()]);
    }
    let recovery = clap::ValueEnum::to_possible_value(&options.loss_recovery).map(|value| value.get_name().to_owned());
    command.arg("--loss-recovery").args(recovery);
    command.arg("--paths").arg(options.paths.to_string());
    let control = clap::ValueEnum::to_possible_value(&options.congestion_control);
    command.arg("--congestion-control").args(control.map(|value| value.get_name().to_owned()));
    if let Some(rate) = options.underlay_rate {
        command.args(["--underlay-rate", &rate.to_string()]);
    }
    if let Some(metrics) = options.metrics {
        command.args(["--metrics", &metrics.to_string()]);
    }
    let mode = clap::ValueEnum::to_possible_value(&options.mode).map(|value| value.get_name().to_owned());
    command.arg("--mode").args(mode);
    command.current_dir("/").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(command.spawn()?)
}

/// The log, emptied unless it may show why a router has died. Programs' names and addresses are in it, which is not for other
/// users.
fn open_log(options: &RouterOptions, state: &StateDir) -> Result<File, Failure> {
    let (directory_mode, mode) = if options.rootless { (0o700, 0o600) } else { (0o755, 0o640) };
    let log = state.open_file(&state.make(directory_mode)?, LOG, mode)?;
    if !state.store().exists() {
        log.set_len(0)?;
    }
    // Whoever rotates it may empty it, or add to it, while the router has it.
    fcntl_setfl(&log, OFlags::APPEND).map_err(io::Error::from)?;
    Ok(log)
}

fn wait_until_up(mut child: Child, client: &Client, state: &StateDir) -> Result<rdmesh_fabric::api::Status, Failure> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        if let Ok(status) = client.status() {
            return Ok(status);
        }
        let ended = child.try_wait()?.is_some();
        if ended || Instant::now() > deadline {
            let log = fs::read_to_string(state.log()).unwrap_or_default();
            let last = log.lines().rev().take(5).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n  ");
            let what = if ended { "did not start" } else { "does not answer" };
            return Err(Failure::new(format!("the router {what}; {} ends with:\n  {last}", state.log().display())));
        }
        sleep(STEP);
    }
}

const START_TIMEOUT: Duration = Duration::from_secs(15);
const STEP: Duration = Duration::from_millis(10);
