//! Happens-before order of the events in one outcome of a chain.

/// Events and what precedes them for certain.
#[derive(Default)]
pub(super) struct Events {
    before: Vec<Vec<u64>>,
    direct: Vec<Vec<usize>>,
    /// An event that has happened after one of these, it is not known which.
    any_of: Vec<(usize, Vec<usize>)>,
    /// A WAIT, how many completions it needs, and all that can make them.
    waits: Vec<(usize, u64, Vec<usize>)>,
}

impl Events {
    pub(super) fn add(&mut self, after: &[usize]) -> usize {
        self.direct.push(after.to_vec());
        self.direct.len() - 1
    }

    pub(super) fn after(&mut self, event: usize, earlier: usize) {
        self.direct[event].push(earlier);
    }

    pub(super) fn after_any(&mut self, event: usize, of: Vec<usize>) {
        self.any_of.push((event, of));
    }

    pub(super) fn wait(&mut self, event: usize, count: u64, feeders: Vec<usize>) {
        self.waits.push((event, count, feeders));
    }

    /// Whether one event is certain to come before, or is, another.
    pub(super) fn is_before(&self, earlier: usize, later: usize) -> bool {
        earlier == later || self.before[later][earlier / 64] >> (earlier % 64) & 1 == 1
    }

    /// Draws all conclusions. Each follows from facts alone, so what is found is true, though not all that is true is found.
    pub(super) fn close(&mut self) {
        let words = self.direct.len().div_ceil(64);
        self.before = vec![vec![0; words]; self.direct.len()];
        loop {
            let mut changed = false;
            for event in 0..self.direct.len() {
                for earlier in self.direct[event].clone() {
                    changed |= self.learn(event, earlier);
                }
            }
            for (event, of) in self.any_of.clone() {
                changed |= self.learn_common(event, &of);
            }
            for (event, count, feeders) in self.waits.clone() {
                for feeder in &feeders {
                    // Without this one there would not be enough.
                    let others = feeders
                        .iter()
                        .filter(|e| *e != feeder && !self.is_before(*feeder, **e) && !self.is_before(event, **e));
                    if (others.count() as u64) < count {
                        changed |= self.learn(event, *feeder);
                    }
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// An event that needs one of several comes after all events that precede, or are, each of them.
    fn learn_common(&mut self, event: usize, of: &[usize]) -> bool {
        let mut common: Option<Vec<u64>> = None;
        for one in of {
            let mut set = self.before[*one].clone();
            set[one / 64] |= 1 << (one % 64);
            common = Some(match common {
                Some(common) => common.iter().zip(&set).map(|(a, b)| a & b).collect(),
                None => set,
            });
        }
        let mut changed = false;
        for (word, more) in self.before[event].iter_mut().zip(common.unwrap_or_default()) {
            changed |= more & !*word != 0;
            *word |= more;
        }
        changed
    }

    fn learn(&mut self, event: usize, earlier: usize) -> bool {
        let mut changed = false;
        let source = self.before[earlier].clone();
        let target = &mut self.before[event];
        for (word, more) in target.iter_mut().zip(source) {
            changed |= more & !*word != 0;
            *word |= more;
        }
        let bit = 1 << (earlier % 64);
        changed |= target[earlier / 64] & bit == 0;
        target[earlier / 64] |= bit;
        changed
    }
}
