//! Completion channels of a context, and the completion queues that report to them.

use std::collections::HashMap;

/// The channels and queues, by handle.
#[derive(Default)]
pub(super) struct Completions {
    channels: HashMap<u32, Channel>,
    /// Queues, with their channels.
    queues: HashMap<u32, Option<u32>>,
}

/// A completion channel.
#[derive(Default)]
struct Channel {
    /// Queues that report to it.
    queues: u32,
    /// The program has closed its end; the channel goes when its last queue does.
    is_closed: bool,
}

impl Completions {
    /// Adds a channel.
    pub(super) fn add_channel(&mut self, channel: u32) {
        self.channels.insert(channel, Channel::default());
    }

    /// Whether the program has this channel open.
    pub(super) fn has_open_channel(&self, channel: u32) -> bool {
        self.channels.get(&channel).is_some_and(|channel| !channel.is_closed)
    }

    /// The program has closed its end of a channel. Returns whether there was one.
    pub(super) fn close_channel(&mut self, channel: u32) -> bool {
        let Some(channel) = self.channels.get_mut(&channel) else { return false };
        channel.is_closed = true;
        true
    }

    /// Whether nothing needs a channel any more.
    pub(super) fn is_unused(&self, channel: u32) -> bool {
        self.channels.get(&channel).is_some_and(|channel| channel.is_closed && channel.queues == 0)
    }

    /// Removes a channel.
    pub(super) fn remove_channel(&mut self, channel: u32) {
        self.channels.remove(&channel);
    }

    /// Adds a queue, which may report to a channel.
    pub(super) fn add_queue(&mut self, queue: u32, channel: Option<u32>) {
        self.queues.insert(queue, channel);
        if let Some(channel) = channel.and_then(|channel| self.channels.get_mut(&channel)) {
            channel.queues += 1;
        }
    }

    /// Whether there is such a queue.
    pub(super) fn has_queue(&self, queue: u32) -> bool {
        self.queues.contains_key(&queue)
    }

    /// Removes a queue. Returns its channel.
    pub(super) fn remove_queue(&mut self, queue: u32) -> Option<u32> {
        let number = self.queues.remove(&queue).flatten()?;
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.queues -= 1;
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_channel_is_unused_when_its_last_queue_has_gone() {
        let mut all = Completions::default();
        all.add_channel(1);
        all.add_queue(7, Some(1));
        assert!(all.has_open_channel(1) && all.close_channel(1) && !all.close_channel(2));
        assert!(!all.has_open_channel(1) && !all.is_unused(1));
        assert_eq!((all.remove_queue(7), all.remove_queue(7)), (Some(1), None));
        assert!(all.is_unused(1) && !all.is_unused(2));
    }
}
