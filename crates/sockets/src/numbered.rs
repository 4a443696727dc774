//! Maps by small numbers, such as descriptors: a look-up is one load.

/// A map from numbers to values, which keep their addresses.
pub(crate) struct Numbered<T> {
    places: Vec<Option<Box<T>>>,
    count: usize,
}

impl<T> Numbered<T> {
    /// The value of `number`.
    #[inline]
    pub(crate) fn get(&self, number: usize) -> Option<&T> {
        self.places.get(number)?.as_deref()
    }

    /// The value of `number`, to be changed.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.places.get_mut(number)?.as_deref_mut()
    }

    /// Sets the value of `number`; returns the one before.
    pub(crate) fn insert(&mut self, number: usize, value: T) -> Option<Box<T>> {
        if number >= self.places.len() {
            self.places.resize_with(number + 1, || None);
        }
        let before = self.places[number].replace(Box::new(value));
        self.count += usize::from(before.is_none());
        before
    }

    /// Removes the value of `number`.
    pub(crate) fn remove(&mut self, number: usize) -> Option<Box<T>> {
        let removed = self.places.get_mut(number)?.take();
        self.count -= usize::from(removed.is_some());
        removed
    }

    /// Whether there is no value.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All values, by their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.places.iter().enumerate().filter_map(|(number, value)| Some((number, value.as_deref()?)))
    }
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { places: Vec::new(), count: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_numbers() {
        let mut map = Numbered::default();
        assert!(map.is_empty() && map.remove(7).is_none() && map.get(7).is_none());
        assert!(map.insert(7, "seven").is_none() && map.insert(0, "null").is_none());
        assert_eq!(map.insert(7, "again").as_deref(), Some(&"seven"));
        assert_eq!((map.get(7).copied(), map.get_mut(0).copied()), (Some("again"), Some("null")));
        assert_eq!(map.iter().collect::<Vec<_>>(), [(0, &"null"), (7, &"again")]);
        assert!(map.remove(7).is_some() && map.remove(7).is_none() && !map.is_empty());
        assert!(map.remove(0).is_some() && map.is_empty());
    }
}
