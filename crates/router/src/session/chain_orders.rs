//! Orders of the host's user to chains: groups of managed queues are stopped, resumed or ended.

use super::devices::Devices;
use crate::endpoint::EndpointId;
use rdmesh_fabric::api::{ChainAction, ControlChain};
use rdmesh_nic::CommandError;

impl Devices {
    /// Stops, resumes or ends a group of an endpoint.
    pub(super) fn control_chain(&self, endpoint: EndpointId, order: ControlChain) -> Result<(), ChainError> {
        let ControlChain { device, group, action } = order;
        let context = self.of_endpoint(endpoint).find(|context| context.number() == device);
        let context = context.ok_or(ChainError::NoSuchChain)?;
        let id = context.id();
        let done = context.shard().call(move |shard| {
            let mut device = shard.engine().device(id)?;
            match action {
                ChainAction::Stop => device.stop_chain(group),
                ChainAction::Resume => device.resume_chain(group),
                ChainAction::Kill => device.kill_chain(group),
            }
        });
        done.map_err(|error| match error {
            CommandError::NoSuchObject => ChainError::NoSuchChain,
            _ => ChainError::Ended,
        })
    }
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
    /// The router ends.
    #[error("the router is stopping")]
    Ending,
}
