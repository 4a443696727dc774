//! The routes of the host, shared by the control plane, rdma_cm and the workers.
//!
//! A change makes a new version. A worker asks in each pass for one that it has not got yet, which takes one read of a number;
//! between that it has its own reference, so that no packet takes a lock. Versions share all routes that are the same.

use rdmesh_nic::{Route, Routes};
use rdmesh_verbs::{Gid, Vni};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The routes. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct SharedRoutes(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    version: AtomicU64,
    routes: Mutex<Arc<Routes>>,
}

impl SharedRoutes {
    /// No routes yet, in tables whose order depends on `seed`.
    pub fn new(seed: u64) -> Self {
        let routes = Mutex::new(Arc::new(Routes::new(seed)));
        Self(Arc::new(Shared { version: AtomicU64::new(0), routes }))
    }

    /// Changes routes, for all.
    pub fn change(&self, f: impl FnOnce(&mut Routes)) {
        let mut routes = self.lock();
        f(Arc::make_mut(&mut routes));
        self.0.version.fetch_add(1, Ordering::Release);
    }

    /// The present version.
    pub fn current(&self) -> Arc<Routes> {
        Arc::clone(&self.lock())
    }

    /// The location of an address.
    pub fn find(&self, vni: Vni, gid: Gid) -> Route {
        self.lock().find(vni, gid)
    }

    /// Whether one address of a network may begin a connection to a port of another.
    pub(crate) fn may_connect(&self, vni: Vni, from: Gid, to: Gid, port: u16) -> bool {
        self.lock().access().may_connect(vni, from, to, port)
    }

    /// The present version, unless it is the one with the number `seen`, which becomes its number.
    #[inline]
    pub(crate) fn newer(&self, seen: &mut u64) -> Option<Arc<Routes>> {
        let version = self.0.version.load(Ordering::Acquire);
        if version == *seen {
            return None;
        }
        // It may be newer than its number: then it is taken once more.
        *seen = version;
        Some(self.current())
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Routes>> {
        self.0.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reader_gets_each_version_once() {
        let shared = SharedRoutes::default();
        let (mut first, mut second) = (0, 0);
        assert!(shared.newer(&mut first).is_none());
        let gid = Gid::from_ip([10, 0, 0, 1].into());
        let old = shared.current();
        shared.change(|routes| routes.insert(Vni(1), gid, Route::Local));
        for seen in [&mut first, &mut second] {
            let routes = shared.newer(seen).unwrap();
            assert_eq!((routes.find(Vni(1), gid), old.find(Vni(1), gid)), (Route::Local, Route::External));
            assert!(shared.newer(seen).is_none());
        }
        assert_eq!(shared.find(Vni(1), gid), Route::Local);
    }
}
