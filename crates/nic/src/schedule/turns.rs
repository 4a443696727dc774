//! Deficit round robin over classes (tenants, and in each its endpoints) and the queue pairs of a class.

use super::list::{Links, List};
use alloc::vec::Vec;

/// One order of queue pairs.
///
/// Classes form a tree under [`ROOT`]. A class is in its parent's ring while queue pairs below it wait; one below which none
/// waits any more leaves the ring when its turn comes. The class at the head of a ring goes on until its credit is used up.
#[derive(Default)]
pub(crate) struct Turns {
    classes: Vec<Class>,
    class_links: Links,
    qp_links: Links,
}

#[derive(Clone, Copy, Default)]
struct Class {
    parent: u32,
    /// Of a tenant: its endpoints' classes; of an endpoint: its queue pairs that wait.
    members: List,
    /// Queue pairs that wait below it.
    waiting: usize,
    /// Remaining cost before the next class has its turn.
    credit: i64,
}

impl Turns {
    /// Makes room for queue pair and class numbers up to these.
    pub(super) fn reserve(&mut self, qp: u32, class: u32) {
        self.qp_links.reserve(qp);
        self.class_links.reserve(class);
        let len = class as usize + 1;
        if self.classes.len() < len {
            self.classes.resize(len, Class::default());
        }
    }

    /// `endpoint` is a class of `tenant`.
    pub(super) fn set_parent(&mut self, endpoint: u32, tenant: u32) {
        self.class(tenant).parent = ROOT;
        self.class(endpoint).parent = tenant;
    }

    /// The class goes; no queue pair of it waits.
    pub(super) fn forget(&mut self, class: u32) {
        if self.class_links.contains(class) {
            let parent = self.class(class).parent;
            self.class_links.remove(&mut self.classes[parent as usize].members, class);
        }
        *self.class(class) = Class::default();
    }

    /// A queue pair of the endpoint with `class` waits for its turn, once.
    pub(super) fn add(&mut self, class: u32, qp: u32) {
        if self.qp_links.contains(qp) {
            return;
        }
        self.qp_links.push_back(&mut self.classes[class as usize].members, qp);
        self.enter(class);
    }

    /// A queue pair of the endpoint with `class` waits no more.
    pub(super) fn remove(&mut self, class: u32, qp: u32) {
        if self.qp_links.contains(qp) {
            self.qp_links.remove(&mut self.classes[class as usize].members, qp);
            self.count(class, |waiting| waiting - 1);
        }
    }

    /// Takes out the queue pair whose turn it is.
    pub(super) fn next(&mut self) -> Option<u32> {
        if self.len() == 0 {
            return None;
        }
        let tenant = self.choose(ROOT)?;
        let endpoint = self.choose(tenant)?;
        let qp = self.class(endpoint).members.first()?;
        self.remove(endpoint, qp);
        Some(qp)
    }

    /// Sets `cost` against the credit of the endpoint with `class`, and of its tenant.
    pub(super) fn charge(&mut self, class: u32, cost: u64) {
        let cost = i64::try_from(cost).unwrap_or(i64::MAX);
        for class in [class, self.class(class).parent] {
            let credit = &mut self.class(class).credit;
            *credit = credit.saturating_sub(cost).max(-MOST_DEBT);
        }
    }

    /// Queue pairs that wait.
    pub(super) fn len(&self) -> usize {
        self.classes.get(ROOT as usize).map_or(0, |root| root.waiting)
    }

    /// The member of `parent` whose turn it is.
    fn choose(&mut self, parent: u32) -> Option<u32> {
        loop {
            let first = self.class(parent).members.first()?;
            let class = self.class(first);
            if class.waiting != 0 && class.credit > 0 {
                return Some(first);
            }
            let is_waiting = class.waiting != 0;
            // A class without work saves no credit, and keeps its debt.
            class.credit = if is_waiting { class.credit + QUANTUM } else { class.credit.min(0) };
            let members = &mut self.classes[parent as usize].members;
            self.class_links.remove(members, first);
            if is_waiting {
                self.class_links.push_back(members, first);
            }
        }
    }

    /// One more queue pair waits below `class`, which is in its parent's ring from now on, as are those above it.
    fn enter(&mut self, class: u32) {
        self.count(class, |waiting| waiting + 1);
        let mut class = class;
        while class != ROOT {
            let parent = self.class(class).parent;
            if !self.class_links.contains(class) {
                self.class_links.push_back(&mut self.classes[parent as usize].members, class);
                let credit = &mut self.class(class).credit;
                if *credit <= 0 {
                    *credit += QUANTUM;
                }
            }
            class = parent;
        }
    }

    /// Changes the number of queue pairs that wait below `class` and all above it.
    fn count(&mut self, class: u32, change: impl Fn(usize) -> usize) {
        let mut class = class;
        loop {
            let Class { parent, waiting, .. } = self.class(class);
            *waiting = change(*waiting);
            if class == ROOT {
                return;
            }
            class = *parent;
        }
    }

    fn class(&mut self, class: u32) -> &mut Class {
        &mut self.classes[class as usize]
    }
}

/// The class above all tenants.
const ROOT: u32 = 0;
/// Credit that a class has each time it has its turn.
const QUANTUM: i64 = 64 * 1024;
/// Debt that a class remembers. One packet may cost more than a turn should: a datagram to a thousand members.
const MOST_DEBT: i64 = 64 * QUANTUM;
