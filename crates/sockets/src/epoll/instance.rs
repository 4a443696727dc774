//! epoll instances as the table of descriptors has them: all descriptors of one have it in common, also those that were duplicated
//! before it had a stream, as tokio's.

use super::Epoll;
use crate::lock::Spin;
use std::sync::{Arc, OnceLock};

/// An epoll instance of the program, which may have streams.
#[derive(Default)]
pub(crate) struct Instance {
    epoll: OnceLock<Arc<Epoll>>,
    /// Held while that is made.
    making: Spin<()>,
}

impl Instance {
    /// Its part in user space, where it has or had streams.
    pub(crate) fn get(&self) -> Option<&Arc<Epoll>> {
        self.epoll.get()
    }

    /// Likewise; made if there is none.
    pub(super) fn get_or_make(&self, make: impl FnOnce() -> Option<Arc<Epoll>>) -> Option<Arc<Epoll>> {
        let _held = self.making.lock();
        if let Some(epoll) = self.epoll.get() {
            return Some(Arc::clone(epoll));
        }
        let made = make()?;
        Some(Arc::clone(self.epoll.get_or_init(|| made)))
    }
}
