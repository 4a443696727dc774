//! State of an endpoint on the session thread: its account, registered memory and traffic.

use super::account::Account;
use super::devices::Devices;
use super::traffic::Traffic;
use crate::io::Clock;
use crate::memory::Arenas;
use rdmesh_nic::{QpCounters, Time};

/// An endpoint that is open, as the session thread has it.
pub(super) struct Endpoint {
    pub(super) account: Account,
    /// Its programs' registered memory.
    pub(super) arenas: Arenas,
    /// Traffic of its destroyed queue pairs.
    ended: Traffic,
    /// The last reported values of its counters.
    reported: Option<Reported>,
}

/// Last reported values of an endpoint's counters, and their time.
#[derive(Clone, Copy)]
struct Reported {
    at: Time,
    sum: Traffic,
}

impl Endpoint {
    pub(super) fn new(account: Account) -> Self {
        let arenas = Arenas::new(account.disposal().clone());
        Self { account, arenas, ended: Traffic::default(), reported: None }
    }

    /// The traffic of queue pairs that are destroyed, to be changed.
    pub(super) fn ended_traffic(&mut self) -> &mut Traffic {
        &mut self.ended
    }

    /// Traffic of all queue pairs, now or a moment ago: reading all of them takes time that others need too.
    pub(super) fn present_traffic(&mut self, devices: &Devices, clock: &Clock) -> QpCounters {
        let now = clock.now();
        let reported = match self.reported {
            Some(reported) if now.0 - reported.at.0 < FRESH => reported,
            _ => {
                let mut sum = self.ended;
                devices.of_endpoint(self.account.spec().id).for_each(|context| sum.add_context(context));
                // Adding up may have taken long.
                Reported { at: clock.now(), sum }
            }
        };
        self.reported = Some(reported);
        reported.sum.counters()
    }
}

/// Nanoseconds for which a sum is cached.
const FRESH: u64 = 100_000_000;
