//! Object lists of a context, for management tools.
//!
//! Each list begins at a handle and has an end, so that one question costs little however many objects there are.

use super::Engine;
use crate::command::{ContextId, QpInfo};
use crate::platform::Platform;
use rdmesh_verbs::Qpn;

/// A queue pair in a list.
#[derive(Clone, Copy, Debug)]
pub struct QpEntry {
    /// Its handle.
    pub handle: u32,
    /// Its protection domain.
    pub pd: u32,
    /// All else.
    pub info: QpInfo,
}

/// A completion queue in a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqEntry {
    /// Its handle.
    pub handle: u32,
    /// Entries that it has room for.
    pub cqe: u32,
    /// Send and receive queues that report to it.
    pub users: u32,
}

/// A protection domain in a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PdEntry {
    /// Its handle.
    pub handle: u32,
    /// Queue pairs, shared receive queues and address handles in it.
    pub users: u32,
}

/// A shared receive queue in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SrqEntry {
    /// Its handle.
    pub handle: u32,
    /// Its protection domain.
    pub pd: u32,
    /// The queue pairs that receive from it, in ascending order.
    pub qps: Vec<Qpn>,
}

impl<P: Platform> Engine<P> {
    /// At most `limit` queue pairs, from handle `from` on.
    pub fn list_qps(&self, id: ContextId, from: u32, limit: usize) -> Vec<QpEntry> {
        let Some(cx) = self.contexts.get(id.0) else { return Vec::new() };
        let entry = |(handle, index): (u32, &u32)| {
            let pd = self.qps.get(*index as usize)?.as_ref()?.core().pd;
            Some(QpEntry { handle, pd, info: self.query_qp(id, handle).ok()? })
        };
        cx.qps.iter_from(from).filter_map(entry).take(limit).collect()
    }

    /// At most `limit` completion queues, from handle `from` on.
    pub fn list_cqs(&self, id: ContextId, from: u32, limit: usize) -> Vec<CqEntry> {
        let Some(cx) = self.contexts.get(id.0) else { return Vec::new() };
        let entries = cx.cqs.iter_from(from).map(|(handle, cq)| CqEntry { handle, cqe: cq.cqe, users: cq.users });
        entries.take(limit).collect()
    }

    /// At most `limit` protection domains, from handle `from` on.
    pub fn list_pds(&self, id: ContextId, from: u32, limit: usize) -> Vec<PdEntry> {
        let Some(cx) = self.contexts.get(id.0) else { return Vec::new() };
        cx.pds.iter_from(from).map(|(handle, pd)| PdEntry { handle, users: pd.users }).take(limit).collect()
    }

    /// At most `limit` shared receive queues, from handle `from` on.
    pub fn list_srqs(&self, id: ContextId, from: u32, limit: usize) -> Vec<SrqEntry> {
        let Some(cx) = self.contexts.get(id.0) else { return Vec::new() };
        let entries = cx.srqs.iter_from(from).map(|(handle, srq)| SrqEntry { handle, pd: srq.pd, qps: Vec::new() });
        let mut entries: Vec<_> = entries.take(limit).collect();
        for qp in cx.qps.iter().filter_map(|(_, index)| self.qps.get(*index as usize)?.as_ref()) {
            let found = qp.core().srq.and_then(|srq| entries.binary_search_by_key(&srq, |entry| entry.handle).ok());
            if let Some(at) = found {
                entries[at].qps.push(qp.core().qpn);
            }
        }
        entries.iter_mut().for_each(|entry| entry.qps.sort_unstable());
        entries
    }
}
