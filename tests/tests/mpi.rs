//! `rdmesh mpi`: large messages of unmodified MPI programs are read by RDMA, with the distribution's Open MPI and MPICH.

use rdmesh_tests::mpi::{Machines, Mpi, under_rdmesh, under_rdmesh_from};
use rdmesh_tests::{Hosts, Lab, Output, Pair, system, until};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);

const BOTH: [Mpi; 2] = [Mpi::OpenMpi, Mpi::Mpich];

/// Messages that the report counts as gone this way.
fn messages(output: &Output, way: &str) -> u64 {
    let line = output.text.lines().find(|line| line.contains(way));
    let count = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    if line.is_some() { count.unwrap_or_else(|| panic!("no count in {line:?}")) } else { 0 }
}

const BY_RDMA: &str = "read by RDMA";

#[test]
fn large_messages_arrive_in_every_way_in_which_mpi_sends_them() {
    let lab = Lab::start();
    let machines = Machines::of(Pair::of(&lab), "10.7.0.3");
    for mpi in BOTH {
        let output = machines.run(mpi, mpi.ranks(), &[&mpi.program("large")]).ok();
        assert!(output.text.contains("all 23 cases hold"), "{mpi:?}: {}", output.text);
        let read = messages(&output, BY_RDMA);
        eprintln!("{mpi:?}: {read} messages read by RDMA");
        assert!(read > 1000, "{mpi:?}: {}", output.text);
    }
    drop(machines);
    lab.wait_until_empty();
}

#[test]
fn persistent_sends_are_read_by_rdma_each_time() {
    let lab = Lab::start();
    let machines = Machines::of(Pair::of(&lab), "10.7.0.3");
    for mpi in BOTH {
        let output = machines.run(mpi, 1, &[&mpi.program("large"), "meet", "again"]).ok();
        // Two ranks meet by 20 messages each, the first before they are connected; then 25 of each are persistent.
        let read = messages(&output, BY_RDMA);
        assert!((80..=90).contains(&read), "{mpi:?}: {}", output.text);
    }
}

#[test]
fn fortran_programs_send_by_rdma() {
    let lab = Lab::start();
    let machines = Machines::of(Pair::of(&lab), "10.7.0.3");
    for mpi in BOTH {
        let output = machines.run(mpi, mpi.ranks(), &[&mpi.program("fortran")]).ok();
        assert!(output.text.contains("all sums are right"), "{mpi:?}: {}", output.text);
        assert!(messages(&output, BY_RDMA) > 30, "{mpi:?}: {}", output.text);
    }
}

#[test]
fn collective_operations_go_by_rdma_between_endpoints() {
    let lab = Lab::start();
    let machines = Machines::of(Pair::of(&lab), "10.7.0.3");
    for mpi in BOTH {
        let output = machines.run(mpi, mpi.ranks(), &[&mpi.program("groups")]).ok();
        assert!(output.text.contains("all 9 cases hold"), "{mpi:?}: {}", output.text);
        let read = messages(&output, BY_RDMA);
        eprintln!("{mpi:?}: {read} messages read by RDMA");
        assert!(read > 100, "{mpi:?}: {}", output.text);
    }
    // Along a chain and round a ring of three, of which each has two ranks.
    let machines = machines.and("third", "10.7.0.4");
    let cases = ["two-types", "gaps", "in-place", "lengths-of-all-to-all", "lengths-of-one"];
    let program = Mpi::OpenMpi.program("groups");
    let command: Vec<&str> = [program.as_str()].into_iter().chain(cases).collect();
    let output = machines.run(Mpi::OpenMpi, 2, &command).ok();
    assert!(output.text.contains("all 5 cases hold"), "{}", output.text);
    assert!(messages(&output, BY_RDMA) > 150, "{}", output.text);
}

#[test]
fn what_mpi_promises_holds_where_some_messages_go_by_rdma() {
    let lab = Lab::start();
    let machines = Machines::of(Pair::of(&lab), "10.7.0.3");
    for mpi in BOTH {
        let output = machines.run(mpi, mpi.ranks(), &[&mpi.program("mpi")]).ok();
        assert!(output.text.contains("all 22 cases hold"), "{mpi:?}: {}", output.text);
        assert!(messages(&output, BY_RDMA) > 0, "{mpi:?}: {}", output.text);
    }
}

#[test]
fn where_nothing_is_announced_mpi_receives_everything() {
    let lab = Lab::start();
    let machines = Machines::of(Pair::of(&lab), "10.7.0.3");
    for mpi in BOTH {
        let never = u64::MAX.to_string();
        let program = mpi.program("large");
        // All but how a message is cut that is too long: Open MPI itself writes beyond the buffer.
        let cases =
            ["meet", "lengths", "progress", "wildcards", "probes", "datatypes", "communicators", "nobody", "many"];
        let command: Vec<&str> = [program.as_str()].into_iter().chain(cases).collect();
        let output = machines.start(mpi, &under_rdmesh_from(&never), mpi.ranks(), &command).finish(LIMIT).ok();
        assert!(output.text.contains("all 9 cases hold"), "{mpi:?}: {}", output.text);
        assert_eq!(messages(&output, BY_RDMA), 0, "{mpi:?}: {}", output.text);
    }
}

#[test]
fn ranks_of_two_hosts_read_over_a_lossy_network() {
    let hosts = Hosts::start();
    hosts.set_faults("loss=1%,seed=6");
    let machines = Machines::of(hosts.pair(), &Hosts::ip(1));
    for mpi in BOTH {
        let cases = ["meet", "lengths", "progress"];
        let program = mpi.program("large");
        let mut command = vec![program.as_str()];
        command.extend(cases);
        let output = machines.run(mpi, 1, &command).ok();
        assert!(messages(&output, BY_RDMA) > 20, "{mpi:?}: {}", output.text);
    }
}

#[test]
fn ranks_measure_from_which_length_on_rdma_is_faster() {
    let lab = Lab::start();
    let machines = Machines::of(Pair::of(&lab), "10.7.0.3");
    for mpi in BOTH {
        let program = mpi.program("stream");
        let output = machines.start(mpi, &under_rdmesh(), mpi.ranks(), &[&program, "50"]).finish(LIMIT).ok();
        assert!(output.text.contains("50 messages are whole"), "{mpi:?}: {}", output.text);
        let measured = output.text.lines().find(|line| line.starts_with("measured at the start: "));
        eprintln!("{mpi:?}: {}", measured.expect("they have measured"));
    }
}

#[test]
fn a_rank_that_stays_outside_gets_its_messages_by_mpi() {
    let lab = Lab::start();
    let machines = Machines::of(Pair::of(&lab), "10.7.0.3");
    for mpi in BOTH {
        let rank = if mpi == Mpi::OpenMpi { "OMPI_COMM_WORLD_RANK" } else { "PMI_RANK" };
        // MPICH 4.0 over UCX stands still where a rank is in MPI_Finalize while another is still in the last barrier: one run in 100
        // of ranks without the library, beside busy loops. Those that have joined wait for each other; this one does not.
        let program = mpi.program("large");
        let script = format!("[ \"${rank}\" = 1 ] && unset RDMESH_MPI; exec env REST=500 {program} lengths progress");
        let script = script_in(&lab, &script);
        let output = machines.run(mpi, 1, &[&script]).ok();
        assert!(output.text.contains("all 2 cases hold"), "{mpi:?}: {}", output.text);
        assert_eq!(messages(&output, BY_RDMA), 0, "{mpi:?}: {}", output.text);
    }
}

/// A script for `sh` that all endpoints of a lab see.
fn script_in(lab: &Lab, text: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(lab.shared()).expect("the folder is ours");
    let path = lab.shared().join("script");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("the folder is ours");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("the file is ours");
    path.display().to_string()
}

#[test]
fn messages_arrive_whole_though_the_router_dies() {
    let lab = Lab::start();
    let machines = Machines::of(Pair::of(&lab), "10.7.0.3");
    for mpi in BOTH {
        let program = mpi.program("stream");
        let mut job = machines.start(mpi, &under_rdmesh_from("16384"), 1, &[&program, "600"]);
        job.next_line(LIMIT);
        until(LIMIT, "the ranks are connected", || (lab.messages() > 50).then_some(()));
        // While it stands still, messages are announced that it will never carry.
        let router = lab.router_pid();
        system::stop(router);
        std::thread::sleep(Duration::from_millis(500));
        system::kill(router);
        until(LIMIT, "the router is dead", || UnixStream::connect(lab.dir().join("api.sock")).is_err().then_some(()));
        lab.up_again();
        let output = job.finish(LIMIT).ok();
        assert!(output.text.contains("600 messages are whole"), "{mpi:?}: {}", output.text);
        let (read, repaired) = (messages(&output, BY_RDMA), messages(&output, "came over the launcher"));
        eprintln!("{mpi:?}: {read} messages announced, {repaired} of them repaired");
        assert!(read > 0 && repaired > 0, "{mpi:?}: {}", output.text);
    }
}

#[test]
fn a_rank_that_is_killed_ends_its_job_and_leaves_nothing() {
    let lab = Lab::start();
    let machines = Machines::of(Pair::of(&lab), "10.7.0.3");
    for mpi in BOTH {
        let program = mpi.program("stream");
        let mut job = machines.start(mpi, &under_rdmesh_from("16384"), 1, &[&program, "1000000"]);
        job.next_line(LIMIT);
        until(LIMIT, "the ranks are connected", || (lab.messages() > 50).then_some(()));
        let name = std::path::Path::new(&program).file_name().expect("a file").to_string_lossy().into_owned();
        let family = system::family(machines.server().pid());
        let rank = family
            .into_iter()
            .find(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name));
        system::kill(rank.expect("a rank in the server's endpoint"));
        let output = job.finish(LIMIT);
        assert!(!output.status.success(), "{mpi:?}: {}", output.text);
        lab.wait_until_empty();
    }
}
