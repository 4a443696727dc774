//! Hosts whose sessions have ended: what they had on a network stays for the tenure.
//!
//! A session ends because its host is lost or because only the store is out of the host's reach. Nobody can tell which, and in the
//! second case its endpoints live and talk. As no other host gets their addresses before the tenure ends, they stay known until
//! then.

use super::follow::NetworkView;
use super::terms::Terms;
use crate::{Endpoint, Host, Name};
use std::collections::BTreeMap;
use std::time::Duration;

/// The hosts without a session on one network, with the endpoints that they had.
#[derive(Clone, Debug)]
pub struct Absences {
    terms: Terms,
    hosts: BTreeMap<Name, Absence>,
}

#[derive(Clone, Debug)]
struct Absence {
    host: Host,
    endpoints: Vec<Endpoint>,
    /// By the clock of [`Absences::observe`].
    until: Duration,
    is_back: bool,
}

impl Absences {
    /// None yet, of hosts with these `terms`.
    pub fn new(terms: Terms) -> Self {
        Self { terms, hosts: BTreeMap::new() }
    }

    /// Compares two successive views at the time `now`. Returns the hosts whose sessions have ended between them.
    ///
    /// A host that leaves releases its endpoints first; one whose session ends loses its own record with or before theirs.
    pub fn observe(&mut self, before: &NetworkView, view: &NetworkView, now: Duration) -> Vec<Name> {
        for host in view.hosts() {
            // It publishes its endpoints one after another.
            if let Some(absence) = self.hosts.get_mut(&host.name).filter(|absence| !absence.is_back) {
                (absence.is_back, absence.until) = (true, absence.until.min(now + self.terms.session));
            }
        }
        let is_gone = |host: &&Host| !view.hosts().any(|there| there.name == host.name);
        let mut lost = Vec::new();
        for host in before.hosts().filter(is_gone) {
            let had = self.complete(before);
            let of_host = had.placed().filter(|(_, of)| of.name == host.name);
            let endpoints: Vec<Endpoint> = of_host.map(|(endpoint, _)| endpoint.clone()).collect();
            if !endpoints.is_empty() {
                let until = now + self.terms.rest_of_tenure();
                let absence = Absence { host: host.clone(), endpoints, until, is_back: false };
                self.hosts.insert(host.name.clone(), absence);
                lost.push(host.name.clone());
            }
        }
        lost
    }

    /// The hosts that are away at the time `now`: the number of their endpoints, and the time until these are forgotten.
    pub fn hosts(&self, now: Duration) -> impl Iterator<Item = (&Name, usize, Duration)> {
        let away = self.hosts.iter().filter(|(_, absence)| !absence.is_back);
        away.map(move |(host, absence)| (host, absence.endpoints.len(), absence.until.saturating_sub(now)))
    }

    /// Forgets the hosts whose tenures may have ended at the time `now`; whether there were any.
    pub fn forget(&mut self, now: Duration) -> bool {
        let before = self.hosts.len();
        self.hosts.retain(|_, absence| now < absence.until);
        self.hosts.len() != before
    }

    /// `view` with the absent hosts and their endpoints, but for those whose name or address another one has by now.
    pub fn complete(&self, view: &NetworkView) -> NetworkView {
        let mut complete = view.clone();
        for Absence { host, endpoints, .. } in self.hosts.values() {
            complete.add_absent(host, endpoints);
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::super::follow::View;
    use super::super::keys;
    use super::*;
    use crate::cluster::tests::{endpoint, host, terms};

    const SECOND: Duration = Duration::from_secs(1);

    fn view_of(hosts: &[u8], endpoints: &[(u8, &str, &str)]) -> NetworkView {
        let mut view = NetworkView::default();
        for &number in hosts {
            let host = host(number);
            view.apply(&format!("{}{}", keys::HOSTS, host.name), Some(&serde_json::to_vec(&host).unwrap()));
        }
        for &(number, name, address) in endpoints {
            let endpoint = endpoint(&host(number), name, address.parse().unwrap());
            view.apply(&format!("{}{name}", keys::ENDPOINTS), Some(&serde_json::to_vec(&endpoint).unwrap()));
        }
        view
    }

    fn placed(view: &NetworkView) -> Vec<(String, String)> {
        view.placed().map(|(endpoint, host)| (endpoint.name.to_string(), host.name.to_string())).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(endpoint, host)| ((*endpoint).to_owned(), (*host).to_owned())).collect()
    }

    const BOTH: [(u8, &str, &str); 3] = [(0, "a", "10.0.0.1"), (1, "b", "10.0.0.2"), (1, "c", "10.0.0.3")];

    #[test]
    fn what_a_lost_host_had_stays_until_its_tenure_ends() {
        let (full, less) = (view_of(&[0, 1], &BOTH), view_of(&[0], &BOTH[..1]));
        let mut absences = Absences::new(terms());
        assert_eq!(absences.observe(&full, &less, SECOND), [host(1).name]);
        assert_eq!(absences.complete(&less), full);
        // The session had lasted since its last renewal at most as long as it may.
        assert!(!absences.forget(SECOND * 50));
        assert_eq!(absences.complete(&less), full);
        assert_eq!(absences.hosts(SECOND * 50).collect::<Vec<_>>(), [(&host(1).name, 2, SECOND)]);
        assert!(absences.forget(SECOND * 51));
        assert_eq!(absences.hosts(SECOND * 51).count(), 0);
        assert_eq!(absences.complete(&less), less);
    }

    #[test]
    fn the_records_may_go_one_after_another() {
        let full = view_of(&[0, 1], &BOTH);
        let (without_host, without_all) = (view_of(&[0], &BOTH), view_of(&[0], &BOTH[..1]));
        let mut absences = Absences::new(terms());
        absences.observe(&full, &without_host, SECOND);
        assert!(absences.observe(&without_host, &without_all, SECOND).is_empty());
        assert_eq!(absences.complete(&without_all), full);
    }

    #[test]
    fn an_endpoint_that_was_released_does_not_stay() {
        let (full, one) = (view_of(&[0, 1], &BOTH), view_of(&[0, 1], &BOTH[..2]));
        let (left, gone) = (view_of(&[0, 1], &BOTH[..1]), view_of(&[0], &BOTH[..1]));
        let mut absences = Absences::new(terms());
        for (before, after) in [(&full, &one), (&one, &left), (&left, &gone)] {
            assert!(absences.observe(before, after, SECOND).is_empty());
            assert_eq!(absences.complete(after), *after);
        }
    }

    #[test]
    fn a_host_that_is_back_publishes_its_endpoints_one_by_one() {
        let (full, less) = (view_of(&[0, 1], &BOTH), view_of(&[0], &BOTH[..1]));
        let back = view_of(&[0, 1], &BOTH[..2]);
        let mut absences = Absences::new(terms());
        absences.observe(&full, &less, SECOND);
        absences.observe(&less, &back, SECOND * 20);
        assert_eq!(absences.complete(&back), full, "the other one is still to come");
        // It goes before it has published all: what it had stays once more.
        let mut twice = absences.clone();
        assert_eq!(twice.observe(&back, &less, SECOND * 25), [host(1).name]);
        assert!(!twice.forget(SECOND * 74));
        assert_eq!(twice.complete(&less), full);
        // What it does not publish in a session's time has gone.
        assert!(absences.forget(SECOND * 30));
        assert_eq!(absences.complete(&back), back);
    }

    #[test]
    fn names_and_addresses_that_others_have_by_now_are_theirs() {
        let (full, less) = (view_of(&[0, 1], &BOTH), view_of(&[0], &BOTH[..1]));
        let mut absences = Absences::new(terms());
        absences.observe(&full, &less, SECOND);
        let later = view_of(&[0, 2], &[BOTH[0], (2, "b", "10.0.0.9"), (2, "heir", "10.0.0.3")]);
        absences.observe(&less, &later, SECOND * 2);
        assert_eq!(placed(&absences.complete(&later)), pairs(&[("a", "h0"), ("b", "h2"), ("heir", "h2")]));
    }
}
