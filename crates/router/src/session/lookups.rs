//! Lookups in what a tenant controls: network namespaces, tables of neighbours, the memory of processes.
//!
//! Each can take as long as the tenant likes, so none runs on a thread that serves others: they run on a thread of their
//! endpoint, and what they find comes back through a queue. The connection that needs it waits; all others go on.

use super::program::Process;
use crate::budget::{Exhausted, Resource, Share};
use crate::errands::{Errands, Job};
use crate::io::{ExternalPathError, ExternalPaths, Terms, Uplink, find_interface, open_namespace};
use crate::memory::{ProcessMemory, WaitAllowance};
use rustix::io::{self, Errno};
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Results on the way to the thread that asked.
pub(super) struct Lookups {
    sender: Sender<(u64, Found)>,
    receiver: Receiver<(u64, Found)>,
    wake: Arc<OwnedFd>,
}

/// Result of a lookup.
pub(super) enum Found {
    /// The interface in a program's network namespace, and sockets there.
    Uplink(Box<Uplink>),
    /// Index and name of the interface in a program's network namespace.
    Interface(Option<(u32, String)>),
    /// A process's memory.
    ProcessMemory(io::Result<ProcessMemory>),
    /// The neighbours in a program's network namespace, in the format of `/proc/net/arp`.
    Neighbours(Option<String>),
}

/// Endpoint for whose program something is looked up. Its lookups follow each other on one thread.
#[derive(Clone)]
pub(super) struct Seeker {
    pub(super) errands: Errands,
    allowance: WaitAllowance,
    share: Share,
    addresses: Vec<IpAddr>,
    /// The endpoint's own network namespace.
    namespace: Option<PathBuf>,
}

/// A lookup, until it is done.
struct Lookup<F> {
    look: Option<F>,
    connection: u64,
    sender: Sender<(u64, Found)>,
    wake: Arc<OwnedFd>,
}

impl<F: FnOnce() -> Found + Send> Job for Lookup<F> {
    fn step(&mut self) -> bool {
        if let Some(look) = self.look.take() {
            // An error means that the thread that asked is gone.
            let _ = self.sender.send((self.connection, look()));
            let _ = io::write(&self.wake, &1u64.to_ne_bytes());
        }
        false
    }
}

impl Lookups {
    /// For a thread that the eventfd `wake` wakes.
    pub(super) fn new(wake: Arc<OwnedFd>) -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver, wake }
    }

    /// The next result, with the connection that it is for.
    pub(super) fn next(&self) -> Option<(u64, Found)> {
        self.receiver.try_recv().ok()
    }

    /// Looks for the interface in the network namespace of `process`, and for sockets there, which `worker` is to serve.
    pub(super) fn find_uplink(
        &self,
        connection: u64,
        seeker: &Seeker,
        process: Arc<Process>,
        external_paths: ExternalPaths,
        worker: usize,
    ) -> Result<(), Exhausted> {
        let of = seeker.clone();
        let charge = Some(seeker.share.take(Resource::Descriptors, ExternalPaths::DESCRIPTORS)?);
        self.ask(connection, seeker, move || {
            let namespace = of.namespace(&process);
            let terms = Terms { charge, wait: of.allowance.timeout() };
            let uplink = external_paths.acquire(namespace, of.addresses.clone(), worker, terms);
            of.judge(uplink.external.as_ref().err());
            Found::Uplink(Box::new(uplink))
        });
        Ok(())
    }

    /// Looks for the interface in the network namespace of `process`.
    pub(super) fn find_interface(&self, connection: u64, seeker: &Seeker, process: Arc<Process>) {
        let of = seeker.clone();
        self.ask(connection, seeker, move || {
            let namespace = of.namespace(&process).map_err(ExternalPathError::Unknown);
            let found = namespace.and_then(|fd| find_interface(fd, of.addresses.clone(), of.allowance.timeout()));
            of.judge(found.as_ref().err());
            Found::Interface(found.ok().flatten())
        });
    }

    /// Opens the memory of `process`.
    pub(super) fn open_memory(&self, connection: u64, seeker: &Seeker, process: Arc<Process>) {
        let of = seeker.clone();
        self.ask(connection, seeker, move || Found::ProcessMemory(process.open_memory(&of.allowance, &of.share)));
    }

    /// Reads the table of neighbours in the network namespace of `process`, up to the length that the router reads.
    pub(super) fn read_neighbours(&self, connection: u64, seeker: &Seeker, process: Arc<Process>) {
        self.ask(connection, seeker, move || Found::Neighbours(neighbours(&process)));
    }

    fn ask(&self, connection: u64, seeker: &Seeker, look: impl FnOnce() -> Found + Send + 'static) {
        let (sender, wake) = (self.sender.clone(), Arc::clone(&self.wake));
        seeker.errands.add(0, Lookup { look: Some(look), connection, sender, wake });
    }
}

impl Seeker {
    /// For an endpoint with these addresses, perhaps in a network namespace of its own.
    pub(super) fn new(share: Share, addresses: Vec<IpAddr>, namespace: Option<PathBuf>) -> Self {
        let (errands, allowance) = (Errands::new("rdmesh-lookup"), WaitAllowance::default());
        Self { errands, allowance, share, addresses, namespace }
    }

    /// The network namespace of `process`. The tenant controls how long a search in it takes, so the number of slow ones is
    /// limited.
    fn namespace(&self, process: &Process) -> io::Result<OwnedFd> {
        match &self.namespace {
            _ if self.allowance.is_used_up() => Err(Errno::TIMEDOUT),
            Some(path) if process.is_router() => open_namespace(&path.display().to_string()),
            _ => process.network_namespace(),
        }
    }

    fn judge(&self, error: Option<&ExternalPathError>) {
        if matches!(error, Some(ExternalPathError::TooSlow)) {
            self.allowance.strike();
        }
    }
}

fn neighbours(process: &Process) -> Option<String> {
    let file = File::open(format!("/proc/{}/net/arp", process.pid)).ok()?;
    // Checked after the opening: the process id was not another process's a moment ago.
    process.is_unchanged().ok()?;
    let mut table = String::new();
    file.take(LONGEST_TABLE).read_to_string(&mut table).ok()?;
    Some(table)
}

/// Bytes of a table that are read: some hundred neighbours.
const LONGEST_TABLE: u64 = 64 * 1024;
