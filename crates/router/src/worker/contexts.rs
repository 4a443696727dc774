//! Contexts of a worker, and which of them it polls.
//!
//! A worker polls the doorbells of contexts that are in use. One that has been silent for a while, where there are many, falls
//! *dormant*: its page says so, its program writes the context's eventfd with the next doorbell, and the worker, which looks at
//! the eventfds now and then, polls it again. So contexts that are idle cost the worker nothing.

use super::arrivals::Arrivals;
use super::attached::Attached;
use rdmesh_nic::{ContextId, Time};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The contexts.
pub(super) struct Contexts {
    /// By place; a place is used again.
    places: Vec<Option<Attached>>,
    free: Vec<usize>,
    by_id: HashMap<ContextId, usize>,
    /// Those whose doorbells are polled, with the time of the last one.
    awake: Vec<(usize, Time)>,
    /// The worker's number, and the sets of all workers.
    worker: u32,
    sets: Arc<[Arrivals]>,
    /// Contexts whose eventfd is not watched yet.
    new: Vec<ContextId>,
    /// Eventfds of closed contexts: a program that keeps its copy would stay in the worker's epoll set.
    retired: Vec<OwnedFd>,
}

impl Contexts {
    /// None, of worker number `worker`; `sets` has one set for each worker.
    pub(super) fn new(worker: u32, sets: Arc<[Arrivals]>) -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            awake: Vec::new(),
            worker,
            sets,
            new: Vec::new(),
            retired: Vec::new(),
        }
    }

    /// Adds a context, which is polled.
    pub(super) fn add(&mut self, now: Time, mut context: Attached) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        context.note_arrivals(&self.sets, self.worker as usize, place);
        context.page.set_dormant(false);
        // Its doorbells are looked at after this.
        context.page.set_worker(self.worker);
        self.by_id.insert(context.id, place);
        self.new.push(context.id);
        self.awake.push((place, now));
        self.places[place] = Some(context);
    }

    /// Removes a context.
    pub(super) fn remove(&mut self, id: ContextId) {
        if let Some(context) = self.take(id) {
            self.retired.push(context.wake);
        }
    }

    /// Takes a context out.
    pub(super) fn take(&mut self, id: ContextId) -> Option<Attached> {
        let place = self.by_id.remove(&id)?;
        self.awake.retain(|(other, _)| *other != place);
        self.new.retain(|other| *other != id);
        self.free.push(place);
        self.places[place].take()
    }

    /// A context.
    pub(super) fn get_mut(&mut self, id: ContextId) -> Option<&mut Attached> {
        self.places[*self.by_id.get(&id)?].as_mut()
    }

    /// All contexts.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Attached> {
        self.places.iter_mut().flatten()
    }

    /// Takes the doorbells of the contexts that are polled. Those that have been silent for long fall dormant. Returns whether
    /// one rang.
    pub(super) fn take_doorbells(&mut self, now: Time, mut ring: impl FnMut(ContextId, u32)) -> bool {
        let Self { places, awake, .. } = self;
        let may_sleep = awake.len() > FEW;
        let mut rang = false;
        awake.retain_mut(|(place, last)| {
            let Some(context) = &places[*place] else { return false };
            if context.page.has_rung() {
                context.page.take_doorbells(|qp| ring(context.id, qp));
                *last = now;
                rang = true;
                return true;
            }
            !may_sleep || now < last.after(SILENT) || !context.fall_dormant()
        });
        rang
    }

    /// Has guests' programs write their eventfds from now on: they do not see that the worker is about to sleep. Returns whether
    /// none of them has rung meanwhile.
    pub(super) fn rest_guests(&mut self) -> bool {
        let Self { places, awake, .. } = self;
        let mut is_silent = true;
        awake.retain(|(place, _)| {
            let Some(context) = places[*place].as_ref().filter(|context| context.page.is_in_guest()) else {
                return true;
            };
            let is_dormant = context.fall_dormant();
            is_silent &= is_dormant;
            !is_dormant
        });
        is_silent
    }

    /// Takes the doorbells of all contexts, before a command that comes after them. Returns whether one rang.
    pub(super) fn take_all_doorbells(&mut self, mut ring: impl FnMut(ContextId, u32)) -> bool {
        let mut rang = false;
        for context in self.places.iter().flatten().filter(|context| context.page.has_rung()) {
            context.page.take_doorbells(|qp| ring(context.id, qp));
            rang = true;
        }
        rang
    }

    /// Whether a doorbell waits that no eventfd tells of while the worker is awake.
    pub(super) fn has_doorbell(&self) -> bool {
        let rang = |place: usize| self.places[place].as_ref().is_some_and(|context| context.page.has_rung());
        self.awake.iter().any(|(place, _)| rang(*place))
    }

    /// Whether contexts are dormant.
    pub(super) fn has_dormant(&self) -> bool {
        self.awake.len() < self.by_id.len()
    }

    /// A context's program has written its eventfd: the context is polled again.
    pub(super) fn awaken(&mut self, now: Time, id: ContextId) {
        let Some(place) = self.by_id.get(&id).copied() else { return };
        if self.awake.iter().any(|(other, _)| *other == place) {
            return;
        }
        if let Some(context) = &self.places[place] {
            context.page.set_dormant(false);
            self.awake.push((place, now));
        }
    }

    /// Wakes threads that sleep because they have polled in vain, where something has arrived. Returns how many contexts
    /// had some.
    pub(super) fn wake_sleepers(&mut self) -> usize {
        let Self { places, sets, worker, .. } = self;
        let mut woken = 0;
        sets[*worker as usize].take(|place| {
            // A late arrival may be of the context that had the place before.
            if let Some(context) = places.get(place).and_then(Option::as_ref) {
                woken += usize::from(context.page.wake_sleepers());
            }
        });
        woken
    }

    /// The eventfds of contexts that were added since this was last asked.
    pub(super) fn watch_new(&mut self, mut watch: impl FnMut(ContextId, BorrowedFd<'_>)) {
        for id in std::mem::take(&mut self.new) {
            if let Some(context) = self.get_mut(id) {
                watch(id, context.wake.as_fd());
            }
        }
    }

    /// The eventfds of contexts that were removed since this was last asked.
    pub(super) fn take_retired(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.retired)
    }
}

/// So many contexts are polled however silent they are.
const FEW: usize = 16;
/// Time without a doorbell after which a context falls dormant.
const SILENT: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::events::EventSocket;
    use crate::worker::wait;
    use rdmesh_uverbs::page::{CONTEXT_PAGE_LEN, ContextPage};
    use rdmesh_uverbs::shared::SharedMemory;

    const LATER: Time = Time(20_000_000);

    /// So many contexts, and their pages.
    fn contexts(count: u32) -> (Contexts, Vec<ContextPage>) {
        let mut contexts = Contexts::new(0, [Arrivals::new()].into());
        let open = |id| {
            let page = ContextPage::new(SharedMemory::create("page", CONTEXT_PAGE_LEN).unwrap().0).unwrap();
            let events = EventSocket::pair().unwrap().0;
            contexts.add(Time(0), Attached::new(ContextId(id), page.clone(), wait::new_eventfd().unwrap(), events));
            page
        };
        let pages = (0..count).map(open).collect();
        (contexts, pages)
    }

    fn rung(contexts: &mut Contexts, now: Time) -> Vec<(u32, u32)> {
        let mut rung = Vec::new();
        contexts.take_doorbells(now, |id, qp| rung.push((id.0, qp)));
        rung
    }

    #[test]
    fn idle_contexts_are_not_polled_and_come_back() {
        let (mut contexts, pages) = contexts(100);
        assert!(rung(&mut contexts, Time(1)).is_empty());
        assert_eq!(contexts.awake.len(), 100);
        pages[7].ring(3);
        assert_eq!(rung(&mut contexts, LATER), [(7, 3)]);
        assert!(contexts.has_dormant());
        assert!(contexts.awake.len() <= 1 + FEW, "{}", contexts.awake.len());
        // One that is dormant is not looked at until its eventfd is written.
        pages[50].ring(4);
        assert!(rung(&mut contexts, LATER).is_empty() && !contexts.has_doorbell());
        contexts.awaken(LATER, ContextId(50));
        assert_eq!(rung(&mut contexts, LATER), [(50, 4)]);
        // A command comes after all doorbells, dormant or not.
        pages[60].ring(5);
        let mut all = Vec::new();
        assert!(contexts.take_all_doorbells(|id, qp| all.push((id.0, qp))));
        assert_eq!(all, [(60, 5)]);
    }

    /// The work of a pass and of a sleep with very many contexts, none of which has any.
    #[test]
    fn a_thousand_idle_contexts_are_not_looked_at() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        const MANY: u32 = 1024;
        // Each has two descriptors.
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
        let (mut contexts, pages) = contexts(MANY);
        assert!(rung(&mut contexts, LATER).is_empty());
        assert_eq!(contexts.awake.len(), 0);
        // Nothing that is in their pages is seen, neither in a pass nor before a sleep.
        for page in &pages {
            page.ring(1);
            page.wait_arrival(page.arrivals(), Duration::from_micros(1));
        }
        assert!(rung(&mut contexts, LATER).is_empty() && !contexts.has_doorbell());
        assert_eq!(contexts.wake_sleepers(), 0, "nothing has arrived for threads that sleep");
        // What is in use among them is all that costs something.
        contexts.awaken(LATER, ContextId(700));
        assert_eq!((rung(&mut contexts, LATER), contexts.awake.len()), (vec![(700, 1)], 1));
    }

    #[test]
    fn guests_write_their_eventfds_to_a_worker_that_is_about_to_sleep() {
        let (mut contexts, pages) = contexts(3);
        pages[1..].iter().for_each(|page| page.set_waker(wait::new_eventfd().unwrap()));
        // One has rung just now, and is polled on.
        pages[2].ring(5);
        assert!(!contexts.rest_guests());
        assert_eq!((contexts.awake.len(), contexts.has_dormant()), (2, true));
        assert_eq!(rung(&mut contexts, Time(1)), [(2, 5)]);
        assert!(contexts.rest_guests());
        assert_eq!(contexts.awake.len(), 1);
        // To a program of this host nothing has changed.
        pages[0].ring(1);
        assert!(contexts.has_doorbell());
        contexts.awaken(Time(2), ContextId(1));
        pages[1].ring(2);
        assert_eq!(rung(&mut contexts, Time(3)), [(0, 1), (1, 2)]);
    }

    #[test]
    fn few_contexts_are_always_polled() {
        let (mut contexts, pages) = contexts(FEW as u32);
        rung(&mut contexts, LATER);
        assert!(!contexts.has_dormant());
        pages[0].ring(1);
        assert!(contexts.has_doorbell());
        assert_eq!(rung(&mut contexts, LATER), [(0, 1)]);
    }

    #[test]
    fn a_doorbell_that_rings_while_its_context_falls_dormant_is_seen() {
        let (contexts, pages) = contexts(1);
        pages[0].ring(9);
        let context = contexts.places[0].as_ref().unwrap();
        assert!(!context.fall_dormant(), "it has rung");
        pages[0].take_doorbells(|_| {});
        assert!(context.fall_dormant());
    }

    #[test]
    fn a_place_that_is_used_again_belongs_to_the_new_context() {
        let (mut contexts, pages) = contexts(3);
        contexts.remove(ContextId(1));
        assert_eq!(contexts.take_retired().len(), 1);
        let page = ContextPage::new(SharedMemory::create("page", CONTEXT_PAGE_LEN).unwrap().0).unwrap();
        let events = EventSocket::pair().unwrap().0;
        contexts.add(LATER, Attached::new(ContextId(9), page.clone(), wait::new_eventfd().unwrap(), events));
        assert_eq!(contexts.places.len(), 3);
        pages[1].ring(1);
        page.ring(2);
        assert_eq!(rung(&mut contexts, LATER), [(9, 2)]);
        let mut watched = Vec::new();
        contexts.watch_new(|id, _| watched.push(id.0));
        assert_eq!(watched, [0, 2, 9]);
    }
}
