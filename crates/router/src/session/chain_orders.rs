//! Orders of the host's user to chains: groups of managed queues are stopped, resumed or ended, shown and traced.

use super::context::Context;
use super::devices::Devices;
use super::label::Label;
use crate::budget::{Exhausted, Share};
use crate::endpoint::EndpointId;
use crate::memory::HostPlatform;
use rdmesh_fabric::api::{ChainAction, ControlChain, TraceChain};
use rdmesh_nic::{ChainQueue, ChainSlot, CommandError, Device, Executed};
use rdmesh_verbs::Qpn;
use std::time::Duration;

impl Devices {
    /// Stops, resumes or ends a group of an endpoint.
    pub(super) fn control_chain(&self, endpoint: EndpointId, order: ControlChain) -> Result<(), ChainError> {
        let ControlChain { device, group, action } = order;
        let context = self.numbered(endpoint, device)?;
        let id = context.id();
        let done = context.shard().call(move |shard| {
            let mut device = shard.engine().device(id)?;
            match action {
                ChainAction::Stop => device.chains().stop(group),
                ChainAction::Resume => device.chains().resume(group),
                ChainAction::Kill => device.chains().kill(group),
            }
        });
        done.map_err(|error| match error {
            CommandError::NoSuchObject => ChainError::NoSuchChain,
            _ => ChainError::Ended,
        })
    }

    /// The queues of a group of an endpoint, and what is in their slots.
    pub(super) fn inspect_chain(
        &self,
        endpoint: EndpointId,
        device: u32,
        group: u32,
    ) -> Result<Vec<QueueRow>, ChainError> {
        let context = self.numbered(endpoint, device)?;
        let id = context.id();
        let rows = context.shard().call(move |shard| {
            let mut device = shard.engine().device(id).ok()?;
            let entry = device.chains().list().into_iter().find(|entry| entry.group == group)?;
            Some(entry.qps.iter().flat_map(|qp| queue_rows(&device, *qp)).collect::<Vec<_>>())
        });
        let mut rows = rows.ok_or(ChainError::NoSuchChain)?;
        for QueueRow { queue, slots, .. } in &mut rows {
            for (index, slot) in (0..).zip(slots) {
                slot.label = context.managed().label_of(queue.qp, queue.is_receive, index);
            }
        }
        Ok(rows)
    }

    /// Records the requests that a group of an endpoint executes, and returns those that were recorded.
    pub(super) fn trace_chain(
        &mut self,
        share: &Share,
        endpoint: EndpointId,
        trace: TraceChain,
    ) -> Result<Vec<StepRow>, ChainError> {
        let TraceChain { device, group, seconds, from } = trace;
        let is_it = |context: &&mut Context| context.endpoint() == endpoint && context.number() == device;
        let context = self.iter_mut().find(is_it).ok_or(ChainError::NoSuchChain)?;
        context.managed_mut().charge_trace(group, share)?;
        let (id, time) = (context.id(), Duration::from_secs(seconds.into()));
        let steps = context.shard().call(move |shard| {
            let mut device = shard.engine().device(id)?;
            let steps = device.chains().trace(group, from, time)?;
            let row = |step: Executed| Some((step, device.query_qp(step.qp).ok()?.qpn));
            Ok::<_, CommandError>(steps.into_iter().filter_map(row).collect::<Vec<_>>())
        });
        if steps.is_err() {
            context.managed_mut().forget_trace(group);
        }
        let label = |step: &Executed| context.managed().label_of(step.qp, step.is_receive, step.index);
        let row = |(step, qpn)| StepRow { label: label(&step), step, qpn };
        Ok(steps.map_err(|_| ChainError::NoSuchChain)?.into_iter().map(row).collect())
    }

    fn numbered(&self, endpoint: EndpointId, device: u32) -> Result<&Context, ChainError> {
        self.of_endpoint(endpoint).find(|context| context.number() == device).ok_or(ChainError::NoSuchChain)
    }
}

/// A managed queue, with its slots.
#[derive(Clone, Debug)]
pub struct QueueRow {
    /// Number of its queue pair.
    pub qpn: Qpn,
    /// Its state.
    pub queue: ChainQueue,
    /// The first slots of its lap.
    pub slots: Vec<SlotRow>,
}

/// A slot of a managed queue.
#[derive(Clone, Debug)]
pub struct SlotRow {
    /// Its label.
    pub label: Option<Label>,
    /// The request that it is now.
    pub slot: ChainSlot,
}

/// A request that a group has executed.
#[derive(Clone, Copy, Debug)]
pub struct StepRow {
    /// The request.
    pub step: Executed,
    /// Number of its queue pair.
    pub qpn: Qpn,
    /// Its label.
    pub label: Option<Label>,
}

fn queue_rows(device: &Device<'_, HostPlatform>, qp: u32) -> Vec<QueueRow> {
    let Ok(info) = device.query_qp(qp) else { return Vec::new() };
    let row = |queue: ChainQueue| {
        let slots = device.list_slots(qp, queue.is_receive, 0, MOST_SLOTS);
        let slots = slots.into_iter().map(|slot| SlotRow { label: None, slot }).collect();
        QueueRow { qpn: info.qpn, queue, slots }
    };
    device.list_queues(qp).into_iter().map(row).collect()
}

/// Error of an order to a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChainError {
    /// There is none.
    #[error("there is no such chain: `rdmesh chain ls` lists them")]
    NoSuchChain,
    /// It cannot go on, or stop.
    #[error("the chain has ended: its program has to reset its queue pairs, or to make new ones")]
    Ended,
    /// The endpoint may not hold so much.
    #[error(
        "the endpoint's share of the router's memory has no room for the record of a chain: end other traced chains"
    )]
    NoRoom,
    /// The router ends.
    #[error("the router is stopping")]
    Ending,
}

impl From<Exhausted> for ChainError {
    fn from(_: Exhausted) -> Self {
        Self::NoRoom
    }
}

/// Slots of a queue that are shown: a worker copies them between two polls.
const MOST_SLOTS: u32 = 1024;
