//! Policy of an endpoint: how fast its queue pairs may send, and who comes first.
//!
//! Rates form a tree: host, tenant, endpoint, queue pair. Requests are charged against all buckets above their queue pair: SENDs,
//! WRITEs, atomics and datagrams with the bytes that they send, READs with the bytes that they ask for, so that the reader pays;
//! acknowledgements and answers are free, and never wait. Traffic within the host counts as traffic to other hosts does.
//! The buckets of host, tenant and endpoint are shared by all engines of the host.

mod bucket;
mod held;

pub use bucket::{Bucket, Rate};
pub use held::{Held, Level};

use crate::timer::Time;
use alloc::sync::Arc;
use core::num::NonZeroU16;

/// Policy of an endpoint. The default limits nothing.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Limits of the whole host.
    pub host: Limits,
    /// Limits of the tenant on this host.
    pub tenant: Limits,
    /// Limits of the endpoint.
    pub endpoint: Limits,
    /// Rates of each of its queue pairs.
    pub qp: Rates,
    /// Steps of the endpoint's chains: a step is a request, or 4096 bytes that it moves.
    pub steps: Option<Arc<Bucket>>,
    /// The endpoint's priority class.
    pub priority: Priority,
    /// The endpoint's share, among those of its tenant.
    pub weight: Weight,
    /// The tenant's share of the host.
    pub tenant_weight: Weight,
    /// Time for which the rates have held its queue pairs.
    pub held: Arc<Held>,
}

/// Rates, in bytes and in messages; none where there is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rates {
    /// Bytes of data.
    pub bytes: Option<Rate>,
    /// Work requests.
    pub messages: Option<Rate>,
}

/// The buckets of one level of the tree. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    bytes: Option<Arc<Bucket>>,
    messages: Option<Arc<Bucket>>,
}

/// Priority class: as long as an endpoint of a higher one has something to send, those below it wait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Priority {
    /// For what must not wait; limit its rate, or it starves the others.
    High,
    /// For everything else.
    #[default]
    Normal,
    /// For what may take what is left.
    Low,
}

/// Share of a processor that is busy, in relation to the others' shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weight(NonZeroU16);

/// Traffic of some requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
}

impl Limits {
    /// Buckets for `rates`, full at first.
    pub fn new(rates: Rates) -> Self {
        let bucket = |rate: Option<Rate>| rate.map(|rate| Arc::new(Bucket::new(rate)));
        Self { bytes: bucket(rates.bytes), messages: bucket(rates.messages) }
    }

    /// Whether these are the same buckets.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same = |one: &Option<Arc<Bucket>>, other: &Option<Arc<Bucket>>| match (one, other) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        is_same(&self.bytes, &other.bytes) && is_same(&self.messages, &other.messages)
    }

    /// Whether there is none.
    pub fn is_unlimited(&self) -> bool {
        self.bytes.is_none() && self.messages.is_none()
    }

    /// Time at which there will be something again in all buckets; none for now.
    pub(crate) fn wait(&self, now: Time) -> Option<Time> {
        [&self.bytes, &self.messages].into_iter().flatten().filter_map(|bucket| bucket.wait(now)).max()
    }

    /// Share that `traffic` takes of what is limited, in bytes: where only messages are, they count alike.
    pub(crate) fn cost(&self, traffic: Traffic) -> u64 {
        let bytes = if self.bytes.is_some() { traffic.bytes } else { 0 };
        let messages = if self.messages.is_some() { traffic.messages * MESSAGE } else { 0 };
        bytes + messages
    }

    /// Takes out what `traffic` costs.
    pub(crate) fn charge(&self, now: Time, traffic: Traffic) {
        if let Some(bytes) = &self.bytes {
            bytes.charge(now, traffic.bytes);
        }
        if let Some(messages) = &self.messages {
            messages.charge(now, traffic.messages);
        }
    }
}

impl Priority {
    /// All classes, the highest first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];
}

impl Weight {
    /// A share in relation to the usual one of 100, at most [`Weight::MOST`]; none for nothing or more.
    pub fn new(weight: u16) -> Option<Self> {
        NonZeroU16::new(weight).filter(|weight| weight.get() <= Self::MOST).map(Self)
    }

    /// The largest.
    pub const MOST: u16 = 10_000;
    /// The usual one.
    pub const USUAL: Self = Self(NonZeroU16::new(100).unwrap());

    /// Its number.
    pub fn get(self) -> u16 {
        self.0.get()
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::USUAL
    }
}

/// A message, among those who share a rate of messages, in bytes among those who share a rate of bytes.
const MESSAGE: u64 = 4096;
