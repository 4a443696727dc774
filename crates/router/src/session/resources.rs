//! Resource lists of an endpoint (`rdma resource`), reported part by part.
//!
//! A key is the position of an object in its list: its context and its handle there, or its number alone.

use super::account::{Account, Item};
use super::context::Context;
use super::control::CmControl;
use super::devices::Devices;
use super::post::Post;
use super::program::Process;
use crate::memory::HostPlatform;
use crate::netlink::{CmId, Kind, Resource};
use rdmesh_nic::{Device, QpEntry};
use std::sync::Arc;

/// An object in a list.
pub(super) struct Row {
    /// Its state.
    pub(super) key: u64,
    /// The process that opened the device or the channel, as long as its connection is there.
    pub(super) owner: Option<Arc<Process>>,
    /// The object's attributes.
    pub(super) resource: Resource,
}

/// The objects of one endpoint.
pub(super) struct Objects<'a> {
    account: &'a Account,
    devices: &'a Devices,
    /// The thread that has the objects of rdma_cm.
    cm: &'a Post<CmControl>,
}

impl<'a> Objects<'a> {
    /// Those of the endpoint with this account.
    pub(super) fn new(account: &'a Account, devices: &'a Devices, cm: &'a Post<CmControl>) -> Self {
        Self { account, devices, cm }
    }

    /// At most `limit` of one kind, from `from` on.
    pub(super) fn list(&self, kind: Kind, from: u64, limit: usize) -> Vec<Row> {
        if kind == Kind::CmId {
            return self.list_cm_ids(from, limit);
        }
        let (first, mut handle) = ((from >> 32) as u32, from as u32);
        let contexts = self.devices.of_endpoint(self.account.spec().id).filter(|context| context.number() >= first);
        let mut contexts: Vec<&Context> = contexts.collect();
        contexts.sort_unstable_by_key(|context| context.number());
        let mut rows = Vec::new();
        for context in contexts {
            if context.number() != first {
                handle = 0;
            }
            rows.extend(context.resources(kind, handle, limit - rows.len()));
            if rows.len() == limit {
                break;
            }
        }
        rows
    }

    /// The object with this number.
    pub(super) fn find(&self, kind: Kind, number: u32) -> Option<Row> {
        match kind {
            Kind::CmId => {
                let found = self.list(kind, number.into(), 1);
                found.into_iter().find(|row| row.key == u64::from(number))
            }
            Kind::Ctx => {
                let key = u64::from(number) << 32;
                self.list(kind, key, 1).into_iter().find(|row| row.key == key)
            }
            Kind::Qp => {
                let contexts = self.devices.of_endpoint(self.account.spec().id);
                contexts
                    .flat_map(|context| context.resources(kind, 0, usize::MAX))
                    .find(|row| matches!(row.resource, Resource::Qp { qpn, .. } if qpn == number))
            }
            _ => {
                let key = u64::from(number >> HANDLE_BITS) << 32 | u64::from(number & HANDLE_MASK);
                self.list(kind, key, 1).into_iter().find(|row| row.key == key)
            }
        }
    }

    /// Number of those of each kind.
    pub(super) fn count(&self) -> Vec<(Kind, u64)> {
        let (objects, contexts) = (self.account.objects(), self.account.held(Item::Context));
        let count = |kind| match kind {
            Kind::Pd => objects.pds.into(),
            Kind::Cq => objects.cqs.into(),
            Kind::Qp => objects.qps.into(),
            Kind::Mr => objects.mrs.into(),
            Kind::Srq => objects.srqs.into(),
            Kind::Ctx => contexts,
            Kind::CmId => self.cm.ask(|answer| CmControl::Count(self.account.spec().id, answer)).unwrap_or(0),
        };
        Kind::ALL.into_iter().map(|kind| (kind, count(kind))).collect()
    }

    fn list_cm_ids(&self, from: u64, limit: usize) -> Vec<Row> {
        let Ok(from) = u32::try_from(from) else { return Vec::new() };
        let ids =
            self.cm.ask(|answer| CmControl::List(self.account.spec().id, from, limit, answer)).unwrap_or_default();
        let row = |(owner, id): (_, CmId)| Row { key: id.number.into(), owner, resource: Resource::CmId(id) };
        ids.into_iter().map(row).collect()
    }
}

impl Context {
    /// At most `limit` of its objects, from handle `from` on.
    fn resources(&self, kind: Kind, from: u32, limit: usize) -> Vec<Row> {
        let owner = self.opener().process();
        let row = |handle: u32, resource| Row {
            key: u64::from(self.number()) << 32 | u64::from(handle),
            owner: owner.clone(),
            resource,
        };
        let context = self.number();
        match kind {
            Kind::Ctx if from == 0 => vec![row(0, Resource::Ctx { number: context })],
            Kind::Ctx | Kind::CmId => Vec::new(),
            Kind::Mr => {
                let regions = self.regions().from(from).take(limit);
                let resource = |handle, region: &super::regions::Region| Resource::Mr {
                    number: self.number_of(handle),
                    len: region.len,
                    pd: self.number_of(region.pd),
                };
                regions.map(|(handle, region)| row(handle, resource(handle, region))).collect()
            }
            Kind::Pd => {
                let pds = self.on_device(move |device| device.context().list_pds(from, limit));
                let users = |pd| u64::from(self.regions().in_domain(pd));
                let resource = |handle, in_engine: u32| Resource::Pd {
                    number: self.number_of(handle),
                    users: u64::from(in_engine) + users(handle),
                    context,
                };
                pds.into_iter().map(|pd| row(pd.handle, resource(pd.handle, pd.users))).collect()
            }
            Kind::Cq => {
                let cqs = self.on_device(move |device| device.context().list_cqs(from, limit));
                let resource = |handle, cqe, users: u32| Resource::Cq {
                    number: self.number_of(handle),
                    cqe,
                    users: users.into(),
                    context,
                };
                cqs.into_iter().map(|cq| row(cq.handle, resource(cq.handle, cq.cqe, cq.users))).collect()
            }
            Kind::Qp => {
                let qps = self.on_device(move |device| device.list_qps(from, limit));
                qps.into_iter().map(|qp| row(qp.handle, self.queue_pair(&qp))).collect()
            }
            Kind::Srq => {
                let srqs = self.on_device(move |device| device.list_srqs(from, limit));
                let resource =
                    |handle, pd, qps| Resource::Srq { number: self.number_of(handle), pd: self.number_of(pd), qps };
                let numbers = |qps: Vec<rdmesh_verbs::Qpn>| qps.into_iter().map(|qpn| qpn.value()).collect();
                srqs.into_iter().map(|s| row(s.handle, resource(s.handle, s.pd, numbers(s.qps)))).collect()
            }
        }
    }

    /// A list of objects in the engine; none where the device is gone.
    fn on_device<T: Send + 'static>(
        &self,
        list: impl FnOnce(Device<'_, HostPlatform>) -> Vec<T> + Send + 'static,
    ) -> Vec<T> {
        let id = self.id();
        self.shard().call(move |shard| shard.engine().device(id).map_or_else(|_| Vec::new(), list))
    }

    fn queue_pair(&self, qp: &QpEntry) -> Resource {
        let attr = &qp.info.attr;
        Resource::Qp {
            qpn: qp.info.qpn.value(),
            qp_type: qp.info.qp_type,
            state: qp.info.state(),
            port: attr.port,
            pd: self.number_of(qp.pd),
            peer: attr.dest_qpn.value(),
            rq_psn: attr.rq_psn.value(),
            sq_psn: attr.sq_psn.value(),
            migration: attr.path_mig_state,
        }
    }

    /// Number of an object in lists: handles are unique within a context only.
    fn number_of(&self, handle: u32) -> u32 {
        self.number() << HANDLE_BITS | handle & HANDLE_MASK
    }
}

/// Bits of an object's number that are its handle.
const HANDLE_BITS: u32 = 20;
const HANDLE_MASK: u32 = (1 << HANDLE_BITS) - 1;
