//! Tests of the port counters.

use crate::client::Client;
use crate::world::World;
use rdmesh_uverbs::session::RequestKind;
use rustix::io::Errno;

#[test]
fn a_counter_is_told_on_any_connection() {
    let world = World::new(1);
    let ask = |client: &mut Client, name: &str| client.call(RequestKind::Counter, name.as_bytes(), &[], None);
    let path = world.endpoint(1);
    for mut client in [Client::connect(&path), Client::device(&path)] {
        assert_eq!(ask(&mut client, "hw_counters/duplicate_request").unwrap().response, b"0\n");
        for unknown in ["", "duplicate_request", "hw_counters/", "hw_counters/no_such"] {
            assert_eq!(ask(&mut client, unknown).err(), Some(Errno::NOENT), "{unknown}");
        }
    }
}
