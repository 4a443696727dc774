//! Device paths in `/sys`, beside the kernel's own device.

use crate::world::{Family, LIMIT, Machine, World, words};
use std::collections::BTreeMap;

/// All below `/sys` that is the device's, by path: its type, and the target of a link.
fn tree(machine: &dyn Machine) -> BTreeMap<String, String> {
    // Programs of the smallest shell: no options that busybox has not.
    let script = "for f in $(find /sys/class/infiniband /sys/class/infiniband_verbs /sys/class/misc/rdma_cm \
                  /sys/devices/virtual/infiniband /sys/devices/virtual/infiniband_verbs /sys/devices/virtual/misc/rdma_cm \
                  /sys/dev/char/231:192); do if [ -L $f ]; then echo $f $(readlink $f); elif [ -d $f ]; then echo $f /; \
                  else echo $f; fi; done";
    let command = ["sh".to_owned(), "-c".to_owned(), script.to_owned()];
    let output = machine.start(Family::V4, &command).finish();
    let lines = output.text.lines().filter(|line| line.starts_with("/sys/"));
    lines.map(|line| line.split_once(' ').unwrap_or((line, ""))).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
}

#[test]
fn the_tree_is_the_kernels() {
    let Some(world) = World::start() else { return };
    let (ours, kernels) = (tree(&world.lab), tree(&world.guest));
    assert!(ours.len() > 50 && kernels.len() > ours.len(), "{ours:?}\n{kernels:?}");
    // Ours alone: the way to the interface, two counters that rxe has not, those of congestion notifications.
    let is_own = |path: &str| path.ends_with("/device") || path.contains("counters");
    for (path, what) in ours.iter().filter(|(path, _)| !is_own(path)) {
        // The kernel has a file for the interface of every address, and our table is as long as an endpoint's needs it.
        assert_eq!(kernels.get(path), Some(what), "{path}");
    }
    // Entries that only the kernel's device has: power management, and figures that we do not have.
    let is_missing = |path: &&String| {
        let rest = ["/power", "/cm_", "counters", "/gids/", "/types/", "/ndevs/", "/pkeys/"];
        !ours.contains_key(*path) && !rest.iter().any(|part| path.contains(part))
    };
    let missing: Vec<&String> = kernels.keys().filter(is_missing).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let read = |machine: &dyn Machine, path: &str| {
        machine.start(Family::V4, &words(&format!("cat {path}"))).finish().ok().text
    };
    for path in ["/sys/class/infiniband/rxe0/uevent", "/sys/class/infiniband_verbs/uverbs0/uevent"] {
        assert_eq!(read(&world.lab, path), read(&world.guest, path), "{path}");
    }
    let real = |machine: &dyn Machine, path: &str| {
        machine.start(Family::V4, &words(&format!("realpath {path}"))).finish().text
    };
    for path in ["/sys/class/infiniband/rxe0/../..", "/sys/dev/char/231:192/subsystem", "/sys/class/misc/rdma_cm/.."] {
        assert_eq!(real(&world.lab, path), real(&world.guest, path), "{path}");
    }
    let listed = world.guest.run(&words("ls /sys/class/infiniband"), LIMIT).ok().text;
    assert_eq!(listed.trim(), "rxe0");
}
