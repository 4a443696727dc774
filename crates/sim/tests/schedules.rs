//! Exhaustive schedules: every order of the packets of short exchanges.

use rdmesh_sim::schedules::{Exchange, Wire, explore};

#[test]
fn every_schedule_of_a_short_exchange_holds() {
    std::thread::scope(|scope| {
        let cases = Exchange::ALL.into_iter().flat_map(|exchange| Wire::ALL.map(|wire| (exchange, wire)));
        let explored: Vec<_> = cases.map(|(e, wire)| (e, wire, scope.spawn(move || explore(e, wire)))).collect();
        for (exchange, wire, explored) in explored {
            let schedules = match explored.join().expect("the exploration ends") {
                Ok(schedules) => schedules,
                Err(broken) => panic!("{exchange:?}, {wire:?}: {}; choices {:?}", broken.violation, broken.choices),
            };
            assert!(schedules > 30_000, "{exchange:?}, {wire:?}: only {schedules} schedules");
        }
    });
}
