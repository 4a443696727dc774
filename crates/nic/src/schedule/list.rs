//! Doubly linked lists of numbers: constant time for everything, no allocation once the table is large enough.

use alloc::vec::Vec;

/// The links of any number of lists. A number is in at most one list of a table.
#[derive(Default)]
pub(super) struct Links(Vec<Link>);

/// The ends of a list whose links are in a [`Links`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct List {
    first: u32,
    last: u32,
}

#[derive(Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
    is_linked: bool,
}

/// One list with links of its own.
#[derive(Default)]
pub(crate) struct NumberList {
    links: Links,
    list: List,
    len: usize,
}

impl Links {
    /// Makes room for numbers up to `number`.
    pub(super) fn reserve(&mut self, number: u32) {
        let len = number as usize + 1;
        if self.0.len() < len {
            self.0.resize(len, Link::LOOSE);
        }
    }

    /// Whether `number` is in a list.
    pub(super) fn contains(&self, number: u32) -> bool {
        self.0.get(number as usize).is_some_and(|link| link.is_linked)
    }

    /// Appends a number that is in no list, and for which there is [room](Self::reserve).
    pub(super) fn push_back(&mut self, list: &mut List, number: u32) {
        debug_assert!(!self.contains(number));
        let before = core::mem::replace(&mut list.last, number);
        self.0[number as usize] = Link { before, after: NONE, is_linked: true };
        match self.0.get_mut(before as usize) {
            Some(link) => link.after = number,
            None => list.first = number,
        }
    }

    /// Puts a number first that is in no list, and for which there is [room](Self::reserve).
    pub(super) fn push_front(&mut self, list: &mut List, number: u32) {
        debug_assert!(!self.contains(number));
        let after = core::mem::replace(&mut list.first, number);
        self.0[number as usize] = Link { before: NONE, after, is_linked: true };
        match self.0.get_mut(after as usize) {
            Some(link) => link.before = number,
            None => list.last = number,
        }
    }

    /// Takes a number out of `list`, in which it is.
    pub(super) fn remove(&mut self, list: &mut List, number: u32) {
        debug_assert!(self.contains(number));
        let Link { before, after, .. } = core::mem::replace(&mut self.0[number as usize], Link::LOOSE);
        match self.0.get_mut(before as usize) {
            Some(link) => link.after = after,
            None => list.first = after,
        }
        match self.0.get_mut(after as usize) {
            Some(link) => link.before = before,
            None => list.last = before,
        }
    }
}

impl Link {
    const LOOSE: Self = Self { before: NONE, after: NONE, is_linked: false };
}

impl List {
    /// The first number.
    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }
}

impl Default for List {
    fn default() -> Self {
        Self { first: NONE, last: NONE }
    }
}

impl NumberList {
    /// Appends `number` unless it is in the list.
    pub(crate) fn push_back(&mut self, number: u32) {
        if !self.links.contains(number) {
            self.links.reserve(number);
            self.links.push_back(&mut self.list, number);
            self.len += 1;
        }
    }

    /// Takes out the first number.
    pub(crate) fn pop_front(&mut self) -> Option<u32> {
        let first = self.list.first()?;
        self.remove(first);
        Some(first)
    }

    /// Takes `number` out, if it is in the list.
    pub(crate) fn remove(&mut self, number: u32) {
        if self.links.contains(number) {
            self.links.remove(&mut self.list, number);
            self.len -= 1;
        }
    }

    /// Length of the list.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn a_list_behaves_as_a_queue_without_duplicates(steps in prop::collection::vec((0..3_u8, 0..12_u32), 0..200)) {
            let (mut list, mut model) = (NumberList::default(), VecDeque::new());
            for (step, number) in steps {
                match step {
                    0 => {
                        list.push_back(number);
                        if !model.contains(&number) {
                            model.push_back(number);
                        }
                    }
                    1 => prop_assert_eq!(list.pop_front(), model.pop_front()),
                    _ => {
                        list.remove(number);
                        model.retain(|other| *other != number);
                    }
                }
                prop_assert_eq!(list.len(), model.len());
                prop_assert_eq!(list.is_empty(), model.is_empty());
            }
            prop_assert_eq!(std::iter::from_fn(|| list.pop_front()).collect::<VecDeque<_>>(), model);
        }
    }
}
