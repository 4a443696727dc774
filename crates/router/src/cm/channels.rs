//! The channels of all programs, and how many events wait in those of each endpoint.

use super::channel::Channel;
use super::event::Pending;
use crate::endpoint::EndpointId;
use rdmesh_nic::ExternalPort;
use rdmesh_uverbs::session::Token;
use std::collections::HashMap;

/// Channels by number.
#[derive(Default)]
pub(super) struct Channels {
    channels: HashMap<u32, Channel>,
    /// Events that wait to be read.
    waiting: HashMap<EndpointId, usize>,
}

impl Channels {
    /// Adds a channel, which has no events.
    pub(super) fn add(&mut self, number: u32, channel: Channel) {
        self.channels.insert(number, channel);
    }

    /// Removes a channel, with its events.
    pub(super) fn remove(&mut self, number: u32) -> Option<Channel> {
        let channel = self.channels.remove(&number)?;
        self.count(channel.endpoint, channel.len(), 0);
        Some(channel)
    }

    pub(super) fn get(&self, number: u32) -> Option<&Channel> {
        self.channels.get(&number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Channel> {
        self.channels.values()
    }

    /// The channel of `endpoint` with this token.
    pub(super) fn find(&self, endpoint: EndpointId, token: &Token) -> Option<u32> {
        let mut found = None;
        for (number, channel) in self.channels.iter().filter(|(_, channel)| channel.endpoint == endpoint) {
            // Every token of the endpoint is compared, so that the time leaks nothing.
            if channel.token.0.iter().zip(&token.0).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0 {
                found = Some(*number);
            }
        }
        found
    }

    /// The endpoint of a channel.
    pub(super) fn endpoint_of(&self, number: u32) -> Option<EndpointId> {
        self.get(number).map(|channel| channel.endpoint)
    }

    /// A channel's path to external peers.
    pub(super) fn external_path_of(&self, number: u32) -> Option<ExternalPort> {
        self.get(number)?.external.flatten()
    }

    /// Sets a channel's path to external peers, or that it has none; returns its endpoint.
    pub(super) fn set_external_path(&mut self, number: u32, external: Option<ExternalPort>) -> Option<EndpointId> {
        let channel = self.channels.get_mut(&number)?;
        channel.external = Some(external);
        Some(channel.endpoint)
    }

    /// Gives an identifier from a channel to another; from none where it is new, to none where it goes.
    pub(super) fn move_id(&mut self, id: u32, from: Option<u32>, to: Option<u32>) {
        if let Some(channel) = from.and_then(|from| self.channels.get_mut(&from)) {
            channel.ids.remove(&id);
        }
        if let Some(channel) = to.and_then(|to| self.channels.get_mut(&to)) {
            channel.ids.insert(id);
        }
    }

    /// Queues an event in a channel.
    pub(super) fn queue(&mut self, number: u32, event: Pending) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        channel.push(event);
        let endpoint = channel.endpoint;
        self.count(endpoint, 0, 1);
    }

    /// Removes events from a channel.
    pub(super) fn unqueue<T: Default>(&mut self, number: u32, take: impl FnOnce(&mut Channel) -> T) -> T {
        let Some(channel) = self.channels.get_mut(&number) else { return T::default() };
        let before = channel.len();
        let taken = take(channel);
        let (endpoint, after) = (channel.endpoint, channel.len());
        self.count(endpoint, before, after);
        taken
    }

    /// Events that wait in the channels of an endpoint.
    pub(super) fn waiting_in(&self, endpoint: EndpointId) -> usize {
        self.waiting.get(&endpoint).copied().unwrap_or_default()
    }

    /// A channel of an endpoint has `after` events, where it had `before`.
    fn count(&mut self, endpoint: EndpointId, before: usize, after: usize) {
        let waiting = self.waiting_in(endpoint) + after - before;
        if waiting == 0 {
            self.waiting.remove(&endpoint);
        } else {
            self.waiting.insert(endpoint, waiting);
        }
    }
}
