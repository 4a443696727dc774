//! Charges of one context: for itself and for its objects, by item.

use super::account::{BudgetCharge, Charge, Item};
use super::objects::{ObjectCounts, ObjectKind};

/// The charges, one for each item. All are given back when this is dropped.
pub(super) struct Holdings(Vec<Charge>);

impl Holdings {
    /// Those of a context that has no objects yet.
    pub(super) fn new(context: Charge) -> Self {
        Self(vec![context])
    }

    /// Something was made.
    pub(super) fn add(&mut self, charge: Charge) {
        match self.0.iter_mut().find(|held| held.item() == charge.item()) {
            Some(held) => held.absorb(charge),
            None => self.0.push(charge),
        }
    }

    /// Some of an item has gone.
    pub(super) fn give_back(&mut self, item: Item, amount: u64) {
        if let Some(held) = self.0.iter_mut().find(|held| held.item() == item) {
            held.give_back(amount);
        }
    }

    /// Amount of an item that is charged.
    pub(super) fn amount(&self, item: Item) -> u64 {
        self.0.iter().find(|held| held.item() == item).map_or(0, Charge::amount)
    }

    /// Counts of the objects.
    pub(super) fn objects(&self) -> ObjectCounts {
        let mut counts = ObjectCounts::default();
        for kind in ObjectKind::ALL {
            // Limited to 32 bits by its quota.
            counts.set(kind, self.amount(Item::Object(kind)) as u32);
        }
        counts
    }

    /// Gives the quotas back. What is returned is to be kept until everything has gone.
    pub(super) fn end(self) -> Vec<BudgetCharge> {
        self.0.into_iter().map(Charge::end).collect()
    }
}
