//! Exhaustive schedules: every order of the packets of short exchanges.

use rdmesh_sim::schedules::{Exchange, explore};

#[test]
fn every_schedule_of_a_short_exchange_holds() {
    std::thread::scope(|scope| {
        let explored = Exchange::ALL.map(|exchange| (exchange, scope.spawn(move || explore(exchange))));
        for (exchange, explored) in explored {
            let schedules = match explored.join().expect("the exploration ends") {
                Ok(schedules) => schedules,
                Err(broken) => panic!("{exchange:?}: {}; choices {:?}", broken.violation, broken.choices),
            };
            assert!(schedules > 30_000, "{exchange:?}: only {schedules} schedules");
        }
    });
}
