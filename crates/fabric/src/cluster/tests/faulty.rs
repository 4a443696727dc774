//! A store that is away, loses answers, or ends its router in the middle of an operation.

use crate::store::{Changes, Committed, Embedded, Entry, LeaseId, Listing, Revision, Store, StoreError, Transaction};
use async_trait::async_trait;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

/// One router's view of a store.
#[derive(Clone)]
pub(super) struct Faulty {
    store: Embedded,
    plan: Arc<Mutex<Plan>>,
    died: Arc<Notify>,
}

struct Plan {
    numbers: u64,
    is_away: bool,
    /// Operations after which the router dies.
    dies_in: Option<u32>,
}

impl Faulty {
    pub(super) fn new(store: Embedded, seed: u64) -> Self {
        let plan = Plan { numbers: seed | 1, is_away: false, dies_in: None };
        Self { store, plan: Arc::new(Mutex::new(plan)), died: Arc::default() }
    }

    pub(super) fn set_away(&self, is_away: bool) {
        self.plan.lock().unwrap().is_away = is_away;
    }

    /// The router dies in the middle of an operation to come, or lives on.
    pub(super) fn die_in(&self, operations: Option<u32>) {
        self.plan.lock().unwrap().dies_in = operations;
    }

    /// Waits until the router dies.
    pub(super) async fn death(&self) {
        self.died.notified().await;
    }

    /// Does an operation, or loses its answer, or ends.
    async fn perform<T>(
        &self,
        is_change: bool,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        for _ in 0..self.below(4) {
            tokio::task::yield_now().await;
        }
        let dies = {
            let mut plan = self.plan.lock().unwrap();
            if plan.is_away {
                return Err(StoreError::Unavailable("away".into()));
            }
            plan.dies_in = plan.dies_in.map(|left| left.saturating_sub(1));
            plan.dies_in == Some(0)
        };
        let (is_lost, is_done) = (is_change && self.below(8) == 0, self.below(2) == 0);
        let answer = if (is_lost || dies) && !is_done { None } else { Some(operation.await) };
        if dies {
            self.died.notify_one();
            // What runs is dropped here.
            std::future::pending::<()>().await;
        }
        for _ in 0..self.below(3) {
            tokio::task::yield_now().await;
        }
        match answer {
            Some(answer) if !is_lost => answer,
            _ => Err(StoreError::OutcomeUnknown("lost".into())),
        }
    }

    fn below(&self, bound: u64) -> u64 {
        let numbers = &mut self.plan.lock().unwrap().numbers;
        *numbers ^= *numbers << 13;
        *numbers ^= *numbers >> 7;
        *numbers ^= *numbers << 17;
        *numbers % bound
    }
}

#[async_trait]
impl Store for Faulty {
    async fn list(&self, prefix: &str, at: Option<Revision>) -> Result<Listing, StoreError> {
        self.perform(false, Store::list(&self.store, prefix, at)).await
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.perform(false, Store::get(&self.store, key)).await
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        self.perform(true, Store::commit(&self.store, transaction)).await
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.perform(true, Store::grant(&self.store, ttl)).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.perform(true, Store::keep_alive(&self.store, lease)).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.perform(true, Store::revoke(&self.store, lease)).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Changes>, StoreError> {
        self.perform(false, Store::watch(&self.store, prefix, after)).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.perform(true, Store::compact(&self.store, revision)).await
    }
}
