//! Resolution of transactions whose outcome is unknown.

use super::{Committed, Expect, Operation, Store, StoreError, Transaction};
use std::time::Duration;

/// Commits a transaction, and finds out whether it was made where the connection is lost meanwhile.
///
/// The transaction is sent again: its conditions let it be made once only, in whichever of its forms the store takes first. Where
/// that then meets a conflict, the keys say whose it is. Every key that the transaction puts must have a condition
/// other than [`Expect::Anything`], and values must tell writers apart, unless to make the transaction twice is the same as to
/// make it once; a change that another writer has replaced already counts as a conflict.
pub async fn settle(store: &dyn Store, transaction: &Transaction) -> Result<Committed, StoreError> {
    let mut is_unknown = false;
    for attempt in 0.. {
        match store.commit(transaction).await {
            Err(StoreError::OutcomeUnknown(_)) if attempt < ATTEMPTS => is_unknown = true,
            // Nothing of this attempt was done, but of the one before, perhaps.
            Err(StoreError::Unavailable(_)) if is_unknown && attempt < ATTEMPTS => {}
            Err(StoreError::Unavailable(why)) if is_unknown => return Err(StoreError::OutcomeUnknown(why)),
            Err(StoreError::Conflict(key)) if is_unknown => {
                return made(store, transaction).await?.ok_or(StoreError::Conflict(key));
            }
            outcome => return outcome,
        }
        tokio::time::sleep(PAUSE * (attempt + 1)).await;
    }
    unreachable!("the last attempt returns")
}

/// The outcome of a transaction according to the keys; none where they are not as it leaves them.
async fn made(store: &dyn Store, transaction: &Transaction) -> Result<Option<Committed>, StoreError> {
    let mut committed = Committed::default();
    for (key, operation) in transaction.operations() {
        match (operation, store.get(key).await?) {
            (Operation::Put { value, .. }, Some(entry)) if entry.value == *value => {
                committed.revision = committed.revision.max(entry.revision);
            }
            (Operation::Delete, None) => {
                let was_there = |(of, expect): (&str, Expect)| of == key && matches!(expect, Expect::Revision(_));
                committed.deleted += usize::from(transaction.conditions().any(was_there));
            }
            _ => return Ok(None),
        }
    }
    Ok(Some(committed))
}

const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);
