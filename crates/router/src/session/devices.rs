//! Devices: the contexts that are open, and the workers that serve them.

use super::context::Context;
use crate::endpoint::EndpointId;
use crate::worker::ShardHandle;
use rdmesh_nic::policy::Policy;
use rdmesh_uverbs::session::Token;
use std::collections::{BTreeSet, HashMap};

/// The open contexts, by number.
pub(super) struct Devices {
    shards: Vec<ShardHandle>,
    contexts: HashMap<u32, Context>,
    next: u32,
}

impl Devices {
    /// No contexts; they are spread over `shards`, of which there is at least one.
    pub(super) fn new(shards: Vec<ShardHandle>) -> Self {
        Self { shards, contexts: HashMap::new(), next: 0 }
    }

    /// The worker with the fewest contexts.
    pub(super) fn least_loaded(&self) -> &ShardHandle {
        let workers = self.contexts.values().map(|context| context.shard().number());
        &self.shards[least_loaded(self.shards.len(), workers)]
    }

    /// Moves the contexts of an endpoint to another worker, or only those of process `pid`. Returns how many there are.
    pub(super) fn move_contexts(
        &mut self,
        endpoint: EndpointId,
        pid: Option<i32>,
        worker: usize,
    ) -> Result<usize, MoveError> {
        let count = self.shards.len();
        let shard = self.shards.get(worker).ok_or(MoveError::NoSuchWorker { worker, count })?;
        let is_meant = |context: &&mut Context| {
            context.endpoint() == endpoint && pid.is_none_or(|pid| context.opener().pid() == pid)
        };
        let mut moved = 0;
        for context in self.contexts.values_mut().filter(is_meant) {
            if context.shard().number() != worker && !context.move_to(shard) {
                return Err(MoveError::Ending);
            }
            moved += 1;
        }
        if moved == 0 { Err(MoveError::NoDevice) } else { Ok(moved) }
    }

    /// Sets the policy of an endpoint on all its devices.
    pub(super) fn set_policy(&self, endpoint: EndpointId, policy: &Policy) {
        self.of_endpoint(endpoint).for_each(|context| context.set_policy(policy.clone()));
    }

    /// Files a context under the next number that is free.
    pub(super) fn insert(&mut self, context: Context) -> u32 {
        while self.contexts.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        self.contexts.insert(number, context);
        number
    }

    /// A context.
    pub(super) fn get(&self, number: u32) -> Option<&Context> {
        self.contexts.get(&number)
    }

    /// A context, to be changed.
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Context> {
        self.contexts.get_mut(&number)
    }

    /// Takes a context out.
    pub(super) fn remove(&mut self, number: u32) -> Option<Context> {
        self.contexts.remove(&number)
    }

    /// All contexts, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Context)> {
        self.contexts.iter().map(|(number, context)| (*number, context))
    }

    /// All contexts, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Context> {
        self.contexts.values_mut()
    }

    /// Those of an endpoint.
    pub(super) fn of_endpoint(&self, endpoint: EndpointId) -> impl Iterator<Item = &Context> {
        self.contexts.values().filter(move |context| context.endpoint() == endpoint)
    }

    /// The context of an endpoint with this token.
    pub(super) fn find(&mut self, endpoint: EndpointId, token: &Token) -> Option<(u32, &mut Context)> {
        let mut found = None;
        for (number, context) in &mut self.contexts {
            // Every token of the endpoint is compared, so that the time leaks nothing.
            if context.endpoint() == endpoint && context.has_token(token) {
                found = Some((*number, context));
            }
        }
        found
    }

    /// The context of an endpoint whose lease has this token.
    pub(super) fn find_leased(&mut self, endpoint: EndpointId, token: &Token) -> Option<(u32, &mut Context)> {
        let mut found = None;
        for (number, context) in &mut self.contexts {
            // As above.
            let has_token = context.tenure().lease().is_some_and(|lease| lease.has_token(token));
            if context.endpoint() == endpoint && has_token {
                found = Some((*number, context));
            }
        }
        found
    }

    /// A number for a new context in lists: the lowest that no other of the endpoint has, which reveals nothing about other
    /// endpoints.
    pub(super) fn free_number(&self, endpoint: EndpointId) -> u32 {
        let used: BTreeSet<u32> = self.of_endpoint(endpoint).map(|context| context.number()).collect();
        let count = used.len() as u32;
        (0..).zip(used).find(|(free, used)| free != used).map_or(count, |(free, _)| free)
    }
}

/// Error of a move of devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MoveError {
    /// There are not so many workers.
    #[error("the router has no worker {worker}: they are numbered from 0 to {}", .count - 1)]
    NoSuchWorker {
        /// Its number.
        worker: usize,
        /// Number of workers.
        count: usize,
    },
    /// Nothing to move.
    #[error("no such program has a device open: `rdmesh ps` lists those that have")]
    NoDevice,
    /// The router ends.
    #[error("the router is stopping")]
    Ending,
}

/// The shard with the fewest contexts.
fn least_loaded(shards: usize, contexts: impl Iterator<Item = usize>) -> usize {
    let mut load = vec![0u32; shards];
    for shard in contexts {
        load[shard] += 1;
    }
    (0..shards).min_by_key(|&shard| load[shard]).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_context_goes_where_fewest_are() {
        assert_eq!(least_loaded(3, [0, 0, 1, 2, 2].into_iter()), 1);
        assert_eq!(least_loaded(2, [].into_iter()), 0);
    }
}
