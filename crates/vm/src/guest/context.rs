//! Device contexts of programs, which forked children share.

use super::events::EventChannel;
use super::objects::Object;
use super::pin::{Pin, PinTable};
use super::queues::Queues;
use rdmesh_uverbs::page::{CONTEXT_PAGE_LEN, ContextPage};
use rdmesh_uverbs::ring::Extent;
use rdmesh_uverbs::session::Token;
use rustix::io;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A context.
pub(super) struct Context {
    table: Arc<PinTable>,
    page: ContextPage,
    page_pin: Pin,
    queues: OwnedFd,
    /// Live [`User`]s.
    users: AtomicUsize,
    state: Mutex<State>,
}

/// Objects and pinned memory of a context, which commands on any of its connections change.
#[derive(Default)]
pub(super) struct State {
    pub(super) queues: Queues<Pin>,
    /// Pins of memory regions, by handle.
    pub(super) regions: HashMap<u32, Vec<Pin>>,
    /// Objects, by kind and handle.
    pub(super) objects: HashMap<(Object, u32), Made>,
    pub(super) channels: Vec<EventChannel>,
}

/// A completion queue, queue pair or shared receive queue.
pub(super) struct Made {
    /// Identifies it in its events: the program's `user_handle`.
    pub(super) element: u64,
    pub(super) queues: Vec<Extent>,
}

impl Context {
    /// The context of a program that has sent its page and its queue memory.
    pub(super) fn new(page: &OwnedFd, queues: OwnedFd) -> std::io::Result<Arc<Self>> {
        let table = PinTable::new()?;
        let page_pin = table.pin(page.as_fd(), 0, CONTEXT_PAGE_LEN)?;
        let page = ContextPage::new(page_pin.memory().clone()).ok_or(io::Errno::INVAL)?;
        let (users, state) = (AtomicUsize::new(0), Mutex::default());
        Ok(Arc::new(Self { table, page, page_pin, queues, users, state }))
    }

    pub(super) fn table(&self) -> &Arc<PinTable> {
        &self.table
    }

    pub(super) fn page(&self) -> &ContextPage {
        &self.page
    }

    /// Guest-physical addresses of its page.
    pub(super) fn page_addresses(&self) -> &[u64] {
        self.page_pin.addresses()
    }

    /// The memfd of its queues, which the program has made.
    pub(super) fn queues(&self) -> &OwnedFd {
        &self.queues
    }

    /// Pins a range of the queue memory. Returns the addresses of its pages.
    pub(super) fn pin_queues(&self, extent: Extent) -> std::io::Result<Vec<u64>> {
        let len = usize::try_from(extent.len).map_err(|_| io::Errno::INVAL)?;
        let pin = self.table.pin(self.queues.as_fd(), extent.offset, len)?;
        let addresses = pin.addresses().to_vec();
        self.state().queues.pinned(extent, pin);
        Ok(addresses)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a program's connection uses it, or has asked to.
    pub(super) fn has_users(&self) -> bool {
        self.users.load(Ordering::Acquire) > 0
    }
}

/// Use of a context by a connection, from the connection's request on; ends on drop.
pub(super) struct User(Arc<Context>);

impl User {
    pub(super) fn new(context: Arc<Context>) -> Self {
        context.users.fetch_add(1, Ordering::AcqRel);
        Self(context)
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.0
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Contexts by the token that lets forked children in.
#[derive(Default)]
pub(super) struct Contexts(Mutex<HashMap<[u8; 16], Weak<Context>>>);

impl Contexts {
    pub(super) fn add(&self, token: Token, context: &Arc<Context>) {
        let mut contexts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.retain(|_, context| context.strong_count() > 0);
        contexts.insert(token.0, Arc::downgrade(context));
    }

    pub(super) fn find(&self, token: &Token) -> Option<Arc<Context>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&token.0)?.upgrade()
    }
}
