//! Deficit round robin over classes (tenants, and in each its endpoints) and the queue pairs of a class.

use super::list::{Links, List};
use crate::policy::Weight;
use alloc::vec::Vec;

/// One order of queue pairs.
///
/// Classes form a tree under [`ROOT`]. A class is in its parent's ring while queue pairs below it wait; one below which none
/// waits any more leaves the ring when its turn comes. The class at the head of a ring goes on until its credit is used up.
pub(crate) struct Turns {
    classes: Vec<Class>,
    class_links: Links,
    qp_links: Links,
    /// Credit that a class of the usual weight has each time it has its turn.
    quantum: i64,
}

#[derive(Clone, Copy, Default)]
struct Class {
    parent: u32,
    /// Of a tenant: its endpoints' classes; of an endpoint: its queue pairs that wait.
    members: List,
    /// Queue pairs that wait below it, but for those below a closed class below it.
    waiting: usize,
    /// Remaining cost before the next class has its turn.
    credit: i64,
    /// Share in relation to its neighbours'.
    weight: Weight,
    /// Nothing below it has a turn before it is opened.
    is_closed: bool,
}

impl Turns {
    /// An order without anybody.
    pub(super) fn new(quantum: i64) -> Self {
        Self { classes: Vec::new(), class_links: Links::default(), qp_links: Links::default(), quantum }
    }

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

    /// The same, before all others of its endpoint.
    pub(super) fn add_first(&mut self, class: u32, qp: u32) {
        if self.qp_links.contains(qp) {
            return;
        }
        self.qp_links.push_front(&mut self.classes[class as usize].members, qp);
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

    /// The queue pairs of the endpoint with `class` that wait, in order; they wait no more.
    pub(super) fn drain(&mut self, class: u32) -> impl Iterator<Item = u32> {
        core::iter::from_fn(move || {
            let qp = self.classes.get(class as usize)?.members.first()?;
            self.remove(class, qp);
            Some(qp)
        })
    }

    /// Sets the share of a class among its neighbours.
    pub(super) fn set_weight(&mut self, class: u32, weight: Weight) {
        self.class(class).weight = weight;
    }

    /// Nothing below the class has a turn until it is opened.
    pub(super) fn close(&mut self, class: u32) {
        let Class { parent, waiting, is_closed, .. } = *self.class(class);
        if is_closed {
            return;
        }
        self.class(class).is_closed = true;
        if class != ROOT {
            self.count(parent, |others| others - waiting);
            if self.class_links.contains(class) {
                self.class_links.remove(&mut self.classes[parent as usize].members, class);
            }
        }
    }

    /// Those below the class that wait have turns again.
    pub(super) fn open(&mut self, class: u32) {
        let Class { parent, waiting, is_closed, .. } = *self.class(class);
        if !is_closed {
            return;
        }
        self.class(class).is_closed = false;
        if class != ROOT {
            self.count(parent, |others| others + waiting);
            if waiting != 0 {
                self.join_rings(class);
            }
        }
    }

    /// Queue pairs below the class that wait for nothing but their turn and, where it is closed, for its opening.
    pub(super) fn waiting(&self, class: u32) -> usize {
        self.classes.get(class as usize).map_or(0, |class| class.waiting)
    }

    /// Sets `cost` against the credit of the endpoint with `class`, and of its tenant.
    pub(super) fn charge(&mut self, class: u32, cost: u64) {
        let (cost, most) = (i64::try_from(cost).unwrap_or(i64::MAX), MOST_DEBT * self.quantum);
        for class in [class, self.class(class).parent] {
            let credit = &mut self.class(class).credit;
            *credit = credit.saturating_sub(cost).max(-most);
        }
    }

    /// Queue pairs that wait for nothing but their turn.
    pub(super) fn len(&self) -> usize {
        self.classes.get(ROOT as usize).map_or(0, |root| if root.is_closed { 0 } else { root.waiting })
    }

    /// The member of `parent` whose turn it is.
    fn choose(&mut self, parent: u32) -> Option<u32> {
        loop {
            let (first, quantum) = (self.class(parent).members.first()?, self.quantum);
            let class = self.class(first);
            if class.waiting != 0 && class.credit > 0 {
                return Some(first);
            }
            let is_waiting = class.waiting != 0;
            // A class without work saves no credit, and keeps its debt.
            class.credit = if is_waiting { class.credit + class.earned(quantum) } else { class.credit.min(0) };
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
        self.join_rings(class);
    }

    /// The class and those above it, up to a closed one, are in their parents' rings.
    fn join_rings(&mut self, class: u32) {
        let mut class = class;
        while class != ROOT && !self.class(class).is_closed {
            let parent = self.class(class).parent;
            if !self.class_links.contains(class) {
                self.class_links.push_back(&mut self.classes[parent as usize].members, class);
                let quantum = self.quantum;
                let class = self.class(class);
                if class.credit <= 0 {
                    class.credit += class.earned(quantum);
                }
            }
            class = parent;
        }
    }

    /// Changes the number of queue pairs that wait below `class` and all above it, up to a closed one.
    fn count(&mut self, class: u32, change: impl Fn(usize) -> usize) {
        let mut class = class;
        loop {
            let Class { parent, waiting, is_closed, .. } = self.class(class);
            *waiting = change(*waiting);
            if class == ROOT || *is_closed {
                return;
            }
            class = *parent;
        }
    }

    fn class(&mut self, class: u32) -> &mut Class {
        &mut self.classes[class as usize]
    }
}

impl Class {
    /// Credit that it has each time it has its turn.
    fn earned(&self, quantum: i64) -> i64 {
        quantum * i64::from(self.weight.get()) / i64::from(Weight::USUAL.get())
    }
}

/// The class above all tenants.
pub(super) const ROOT: u32 = 0;
/// Debt that a class remembers, in quanta. One packet may cost more than a turn should: a datagram to a thousand members.
const MOST_DEBT: i64 = 64;
