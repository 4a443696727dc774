//! A context as its worker sees it: its page, and the events that go to its program.

use super::arrivals::{Arrivals, Spot};
use super::events::{EventBytes, EventSocket};
use rdmesh_nic::ContextId;
use rdmesh_uverbs::page::ContextPage;
use rdmesh_verbs::AsyncEvent;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A context as the worker sees it.
pub(super) struct Attached {
    pub(super) id: ContextId,
    pub(super) page: ContextPage,
    pub(super) wake: OwnedFd,
    pub(super) events: EventSocket,
    pub(super) channels: HashMap<u32, EventSocket>,
    pub(super) next_channel: u32,
    pub(super) cqs: HashMap<u32, Watched>,
    pub(super) qps: HashMap<u32, Watched>,
    pub(super) srqs: HashMap<u32, Watched>,
    /// Place of its arrivals, once a worker serves it.
    spot: Option<Arc<Spot>>,
}

/// An object that events are about.
#[derive(Default)]
pub(super) struct Watched {
    pub(super) user_handle: u64,
    pub(super) channel: Option<u32>,
    pub(super) completions: u32,
    pub(super) events: u32,
}

impl Attached {
    /// A context without objects.
    pub(super) fn new(id: ContextId, page: ContextPage, wake: OwnedFd, events: EventSocket) -> Self {
        Self {
            id,
            page,
            wake,
            events,
            channels: HashMap::new(),
            next_channel: 0,
            cqs: HashMap::new(),
            qps: HashMap::new(),
            srqs: HashMap::new(),
            spot: None,
        }
    }

    /// Has its arrivals noted at the `place` that it has with a worker, in that one's of the `sets` of all.
    pub(super) fn note_arrivals(&mut self, sets: &Arc<[Arrivals]>, worker: usize, place: usize) {
        let page = &self.page;
        let spot = self.spot.get_or_insert_with(|| {
            let spot = Arc::new(Spot::new(Arc::clone(sets)));
            let noted = Arc::clone(&spot);
            page.on_arrival(move || noted.note());
            spot
        });
        spot.set(worker, place);
    }

    /// Has its program write the eventfd with its next doorbell. False where one has rung meanwhile: then it is polled on.
    pub(super) fn fall_dormant(&self) -> bool {
        self.page.set_dormant(true);
        // Either this sees the doorbell, or the program sees that it has to write.
        let is_silent = !self.page.has_rung();
        if !is_silent {
            self.page.set_dormant(false);
        }
        is_silent
    }

    /// A completion has been added to `cq`. Returns whether an event waits for room.
    pub(super) fn completion(&mut self, cq: u32) -> bool {
        let Some(watched) = self.cqs.get_mut(&cq) else { return false };
        let Some(channel) = watched.channel.and_then(|channel| self.channels.get_mut(&channel)) else { return false };
        let is_new = channel.push(EventBytes { element: watched.user_handle, event_type: None });
        watched.completions += u32::from(is_new);
        channel.flush()
    }

    /// An asynchronous event. Returns whether one waits for room.
    pub(super) fn async_event(&mut self, event: AsyncEvent, element: u32) -> bool {
        use AsyncEvent::{CqError, DeviceFatal, GidChange, PortActive, PortError, SrqError, SrqLimitReached};
        let watched = match event {
            CqError => self.cqs.get_mut(&element),
            SrqError | SrqLimitReached => self.srqs.get_mut(&element),
            DeviceFatal | GidChange | PortActive | PortError => None,
            _ => self.qps.get_mut(&element),
        };
        let element = watched.as_ref().map_or(u64::from(element), |watched| watched.user_handle);
        let is_new = self.events.push(EventBytes { element, event_type: Some(event as u32) });
        if let Some(watched) = watched {
            watched.events += u32::from(is_new);
        }
        self.events.flush()
    }

    /// Takes back the unread asynchronous events of an object; returns how many the program has read.
    pub(super) fn take_back_events(&mut self, watched: &Watched) -> u32 {
        watched.events.saturating_sub(self.events.take_back(watched.user_handle))
    }
}
