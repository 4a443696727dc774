//! Injected faults, as the operator sets them.

use crate::io::Faults;
use crate::worker::Workers;
use std::sync::{Arc, Mutex, PoisonError};

/// The faults that all workers inject.
pub struct FaultControl {
    workers: Arc<Workers>,
    present: Mutex<Option<Faults>>,
}

impl FaultControl {
    /// The workers inject `present` already.
    pub(super) fn new(present: Option<Faults>, workers: Arc<Workers>) -> Self {
        Self { workers, present: Mutex::new(present) }
    }

    /// The injected faults.
    pub fn present(&self) -> Option<Faults> {
        *self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the injected faults.
    pub fn set(&self, faults: Option<Faults>) {
        let mut known = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        self.workers.set_faults(faults);
        *known = faults;
        match faults {
            Some(faults) => tracing::warn!(%faults, "fault injection on"),
            None => tracing::info!("fault injection off"),
        }
    }
}
