//! Test harness: a server with real workers, and endpoints on it.

use crate::client::Client;
use rdmesh_fabric::Quota;
use rdmesh_router::endpoint::EndpointId;
use rdmesh_router::io::IoConfig;
use rdmesh_router::session::{EndpointSpec, SessionServer, SessionTotals};
use rdmesh_router::worker::{Mode, WorkerConfig, Workers};
use rdmesh_verbs::{DeviceLimits, Gid, Vni};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Fields are dropped in this order: the server before the workers that it calls.
pub(crate) struct World {
    pub(crate) server: SessionServer,
    workers: Workers,
    directory: tempfile::TempDir,
    limits: DeviceLimits,
}

impl World {
    pub(crate) fn new(workers: usize) -> Self {
        let limits = DeviceLimits::default();
        let config = WorkerConfig { count: workers, mode: Mode::Adaptive, limits, io: IoConfig::default() };
        let workers = Workers::start(config).unwrap();
        let server = SessionServer::start(workers.shards().to_vec(), limits, Mode::Adaptive).unwrap();
        Self { server, workers, directory: tempfile::tempdir().unwrap(), limits }
    }

    pub(crate) fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// Keeps the first worker from executing anything until the result is dropped.
    pub(crate) fn hold_worker(&self) -> Sender<()> {
        let shard = self.workers.shards()[0].clone();
        let ((release, released), (entered, is_held)) = (channel(), channel());
        std::thread::spawn(move || {
            shard.call(move |_| {
                entered.send(()).unwrap();
                let _ = released.recv();
            })
        });
        is_held.recv().unwrap();
        release
    }

    /// Adds endpoint `n` with the default quota.
    pub(crate) fn endpoint(&self, n: u8) -> PathBuf {
        self.endpoint_with(n, |_| {})
    }

    /// Adds endpoint `n`, 10.7.0.n on network 7.
    pub(crate) fn endpoint_with(&self, n: u8, change: impl FnOnce(&mut EndpointSpec)) -> PathBuf {
        let mut spec = EndpointSpec {
            policy: Default::default(),
            id: EndpointId(n.into()),
            name: format!("e{n}"),
            network: "blue".into(),
            vni: Vni(7),
            gids: vec![link_local(n), gid(n)],
            quota: Quota { linger_seconds: 3600, ..Quota::default() },
            allowed_uid: None,
            namespace: None,
        };
        change(&mut spec);
        let path = self.path(n);
        // Of an endpoint that was removed.
        let _ = std::fs::remove_file(&path);
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 64).unwrap();
        self.server.add_endpoint(spec, listener);
        path
    }

    /// The socket of endpoint `n`.
    pub(crate) fn path(&self, n: u8) -> PathBuf {
        self.directory.path().join(format!("{n}.sock"))
    }

    /// A device, opened and ready for commands.
    pub(crate) fn device(&self, n: u8) -> Client {
        Client::device(&self.endpoint(n))
    }

    /// Waits until every context is gone, and checks that nothing was lost on the way.
    pub(crate) fn expect_reclaimed(&self) -> SessionTotals {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let totals = self.server.totals();
            assert_eq!(
                totals.objects_created,
                totals.objects_destroyed + totals.objects_reclaimed + totals.objects_live
            );
            if totals.contexts_opened == totals.contexts_closed {
                assert_eq!(totals.objects_live, 0);
                assert!(self.server.snapshot().is_empty());
                return totals;
            }
            assert!(Instant::now() < deadline, "contexts are left: {totals:?}");
            std::thread::yield_now();
        }
    }
}

impl World {
    /// Waits until the workers sleep, and go on sleeping: none polls for a while.
    pub(crate) fn expect_rest(&self) {
        let polls = || self.workers.shards().iter().map(|shard| shard.stats().polls).sum::<u64>();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let before = polls();
            std::thread::sleep(Duration::from_millis(300));
            if polls() == before {
                return;
            }
            assert!(Instant::now() < deadline, "the workers do not come to rest");
        }
    }
}

pub(crate) fn gid(n: u8) -> Gid {
    Gid::from_ip(Ipv4Addr::new(10, 7, 0, n).into())
}

fn link_local(n: u8) -> Gid {
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, n])
}
