//! Virtual machines with a stock kernel: their programs use the router's device.

use rdmesh_tests::guest::{self, Job};
use rdmesh_tests::{Endpoint, Hosts, Lab, Machine, machine, mpi_programs, system, until};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 18_780;

/// A lab, unless no guest can run here.
fn lab() -> Option<Lab> {
    if let Some(why) = guest::unavailable() {
        println!("skipped: {why}");
        return None;
    }
    Some(Lab::start())
}

/// Runs a program's two ends in two machines.
fn exchange([server, client]: &[Machine; 2], command: &str, options: &str) {
    let words: Vec<&str> = command.split(' ').chain(options.split_whitespace()).collect();
    let job = server.start(&words);
    let port = words.iter().position(|word| *word == "-p").map_or(18_515, |at| words[at + 1].parse().expect("a port"));
    job.wait_listening(port);
    let address = server.address();
    let words: Vec<&str> = words.into_iter().chain([address.as_str()]).collect();
    client.run(&words).ok();
    job.finish(LIMIT).ok();
}

fn no_device_is_open(lab: &Lab) {
    until(LIMIT, "no program has a device", || {
        lab.api("/v1/contexts").as_array().is_some_and(Vec::is_empty).then_some(())
    });
}

#[test]
fn programs_in_two_guests_exchange_messages_and_memory() {
    let Some(lab) = lab() else { return };
    let machines = Machine::pair(&lab);
    let doctor = [machine::program(), "doctor".into()];
    let doctor: Vec<&str> = doctor.iter().map(String::as_str).collect();
    let before = machines[0].run_plain(&doctor);
    assert!(!before.status.success() && before.text.contains("missing  agent: "), "{}", before.text);
    let agents = [machines[0].serve(), machines[1].serve()];
    let now = machines[0].run_plain(&doctor).ok();
    assert!(!now.text.contains("missing") && now.text.contains("eth0 has 10.7.0.2"), "{}", now.text);
    // With their data checked.
    for pingpong in
        ["ibv_rc_pingpong", "ibv_rc_pingpong -e", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong -e"]
    {
        exchange(&machines, pingpong, "-c -g 0 -n 200");
    }
    let port = format!("-F -p {PORT}");
    exchange(&machines, "ib_send_lat", &format!("{port} -n 200"));
    exchange(&machines, "ib_atomic_bw", &format!("{port} -n 200"));
    exchange(&machines, "ib_write_bw", &format!("{port} -s 1048576 -n 50"));
    // More pieces than one message holds.
    exchange(&machines, "ib_read_bw", &format!("{port} -s 16777216 -n 5"));
    exchange(&machines, "ib_send_bw -e", &format!("{port} -n 100"));
    // An ordinary user of the guest.
    machines[0].run(&["setpriv", "--reuid", "65534", "--clear-groups", "ibv_devinfo", "-v"]).ok();
    // Connections by rdma_cm, and a container of the same host.
    let address = machines[0].address();
    let server = machines[0].start(&["rping", "-s", "-P", "-v", "-a", &address]);
    until(LIMIT, "the server listens", || {
        let connections = lab.api("/v1/connections");
        connections.as_array().is_some_and(|all| all.iter().any(|one| one["state"] == "LISTEN")).then_some(())
    });
    let client = ["rping", "-c", "-v", "-C", "10", "-a", &address];
    machines[1].run(&client).ok();
    let container = Endpoint::at("c", machine::NETWORK, "10.7.0.4");
    lab.run_in(&container, LIMIT, &client).ok();
    server.kill();
    drop(server);
    no_device_is_open(&lab);
    agents.iter().for_each(|agent| assert!(!agent.text().contains("closed"), "{}", agent.text()));
}

/// Messages, collective operations and windows, with their data checked: large ones are read from the sender's buffer in place.
#[test]
fn mpi_ranks_in_two_guests_hold_to_what_mpi_promises() {
    let Some(lab) = lab() else { return };
    let programs = mpi_programs();
    let machines = Machine::pair(&lab);
    let _agents = (machines[0].serve(), machines[1].serve());
    let remote = rdmesh_tests::root().join("tests/programs/mpi/remote.py").display().to_string();
    let mut remotes = Vec::new();
    for (machine, name) in machines.iter().zip(["a", "b"]) {
        machine
            .run_plain(&["sh", "-c", &format!("hostname {name} && echo 127.0.0.1 localhost {name} >/etc/hosts")])
            .ok();
        let job = machine.start(&["env", "REMOTE_PORT=18700", &remote, "--serve", "18700"]);
        job.wait_listening(18_700);
        remotes.push(job);
    }
    let hosts = format!("{}:1,{}:1", machines[1].address(), machines[0].address());
    let program = |name: &str| programs.join(name).display().to_string();
    let open_mpi = format!(
        "mpirun.openmpi --allow-run-as-root --host {hosts} --mca plm_rsh_agent {remote} --mca mpi_yield_when_idle 1 --mca pml ucx \
         --mca osc ucx --mca btl ^openib,tcp,vader,ofi -x UCX_NET_DEVICES=rxe0:1 -x UCX_TLS=rc_verbs,ud_verbs,self {}",
        program("mpi.openmpi")
    );
    let mpich = format!(
        "mpiexec.mpich -n 2 -hosts {hosts} -launcher rsh -launcher-exec {remote} -genv UCX_NET_DEVICES rxe0:1 \
         -genv UCX_TLS rc_verbs,ud_verbs,self {}",
        program("mpi.mpich")
    );
    for command in [open_mpi, mpich] {
        let ran = machines[1].run(&["env", "REMOTE_PORT=18700", "sh", "-c", &command]).ok();
        assert!(ran.text.contains("all 22 cases hold"), "{command}:\n{}", ran.text);
    }
    // Over TCP, with large messages by RDMA.
    let guest = machine::program();
    let open_mpi = format!(
        "env RDMESH_MPI_THRESHOLD=16384 {guest} mpi mpirun.openmpi --allow-run-as-root --host {hosts} --mca plm_rsh_agent {remote} --mca mpi_yield_when_idle 1 \
         --mca pml ob1 --mca btl tcp,self {}",
        program("large.openmpi")
    );
    let mpich = format!(
        "env RDMESH_MPI_THRESHOLD=16384 {guest} mpi mpiexec.mpich -n 2 -hosts {hosts} -launcher rsh -launcher-exec {remote} -genv UCX_TLS tcp,self {}",
        program("large.mpich")
    );
    for command in [open_mpi, mpich] {
        let command = format!("{command} meet lengths progress kinds");
        let ran = machines[1].run_plain(&["env", "REMOTE_PORT=18700", "sh", "-c", &command]).ok();
        assert!(ran.text.contains("all 4 cases hold"), "{command}:\n{}", ran.text);
        let read = ran.text.lines().find(|line| line.contains("read by RDMA")).unwrap_or_default();
        let read: Option<u32> = read.split_whitespace().next().and_then(|count| count.parse().ok());
        assert!(read.is_some_and(|count| count > 50), "{command}:\n{}", ran.text);
    }
    remotes.iter().for_each(Job::kill);
    no_device_is_open(&lab);
}

#[test]
fn a_guest_reaches_another_host_and_outlives_its_router() {
    let Some(_here) = lab() else { return };
    let hosts = Hosts::start();
    let machine = Machine::boot(hosts.lab(0), "e0", 2);
    machine.wait_ready();
    let _agent = machine.serve();
    let other = Hosts::endpoint(1, machine::NETWORK);
    let exchange = |command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        let job = machine.start(&words);
        job.wait_listening(PORT);
        let address = machine.address();
        let words: Vec<&str> = words.into_iter().chain([address.as_str()]).collect();
        hosts.lab(1).run_in(&other, LIMIT, &words).ok();
        job.finish(LIMIT).ok();
    };
    let commands = [
        format!("ibv_rc_pingpong -c -g 0 -n 200 -p {PORT}"),
        format!("ib_write_bw -F -p {PORT} -s 262144 -n 100"),
        format!("ib_read_bw -F -p {PORT} -s 262144 -n 100"),
    ];
    commands.iter().for_each(|command| exchange(command));
    // Accelerated connections of a program on the other host.
    let streams = rdmesh_tests::root().join("tests/programs/sockets/streams.py").display().to_string();
    let (port, address, before) = (PORT.to_string(), machine.address(), bytes_by_rdma(&hosts));
    let job = machine.start_accelerated(&["python3", &streams, "serve", &port, "4", "16"]);
    job.wait_listening(PORT);
    let connect = ["python3", &streams, "connect", &address, &port, "4", "16"];
    let accelerated = Hosts::endpoint(1, machine::NETWORK).with(&["--accel"]);
    let output = hosts.lab(1).run_in(&accelerated, LIMIT, &connect).ok();
    assert!(output.text.contains("4 streams are right"), "{}", output.text);
    assert!(job.finish(LIMIT).ok().text.contains("4 streams are right"));
    let sent = bytes_by_rdma(&hosts) - before;
    assert!(sent > 5e6, "{sent} bytes of 67 million went over RDMA");
    // A program has its device's error when the router dies; the next router serves the next program.
    let job = machine.start(&["ib_write_bw", "-F", "-p", "18790"]);
    job.wait_listening(18_790);
    system::kill(hosts.lab(0).router_pid());
    hosts.lab(0).up_again();
    job.kill();
    drop(job);
    hosts.wait_for_sessions();
    commands.iter().for_each(|command| exchange(command));
}

#[test]
fn what_a_program_shared_goes_with_it() {
    let Some(lab) = lab() else { return };
    let machines = Machine::pair(&lab);
    let [server, client] = &machines;
    let (agent, _other) = (server.serve(), client.serve());
    let stream = ["ib_write_bw", "-F", "-p", "18790", "-s", "8388608", "-D", "30"];
    let address = server.address();
    let to_server: Vec<&str> = stream.iter().copied().chain([address.as_str()]).collect();
    let begin = || {
        let job = server.start(&stream);
        job.wait_listening(18_790);
        let other = client.start(&to_server);
        until(LIMIT, "messages are on their way", || (lab.messages() > 10).then_some(()));
        (job, other)
    };
    let kernel = "awk '/Shmem:/ { print $2 }' /proc/meminfo; ls /proc/$(pidof rdmesh-guest)/fd | wc -l";
    let before = numbers(server, kernel);
    // The host sees which program of the guest it is.
    let (job, other) = begin();
    let contexts = lab.api("/v1/contexts");
    assert!(
        contexts.as_array().is_some_and(|all| all.iter().all(|one| one["command"] == "vm:ib_write_bw")),
        "{contexts}"
    );
    drop((job, other));
    no_device_is_open(&lab);
    // A program that is killed in the middle of a WRITE: its peer gets an error, and the agent keeps nothing.
    for _ in 0..3 {
        let (job, other) = begin();
        job.kill();
        assert!(!other.finish(LIMIT).status.success(), "the client has not noticed");
        no_device_is_open(&lab);
        // Its memory is another program's then, which must not see a byte of the stream.
        canary(server);
    }
    until(LIMIT, "the agent has given everything back", || {
        let now = numbers(server, kernel);
        (now[1] <= before[1] && now[0] < before[0] + 1024).then_some(())
    });
    // An agent that is killed takes its programs' devices along, and another one serves again.
    let (job, other) = begin();
    agent.kill();
    assert!(!other.finish(LIMIT).status.success());
    assert!(!job.finish(LIMIT).status.success(), "the program has not noticed that its device is gone");
    no_device_is_open(&lab);
    canary(server);
    let _again = server.serve();
    exchange(&machines, "ibv_rc_pingpong", "-c -g 0 -n 100");
    // A machine that is switched off in the middle.
    let (job, other) = begin();
    system::kill(system::find(client.guest().pid(), "qemu-system-x86").expect("the monitor runs"));
    until(LIMIT, "only the other machine's device is open", || {
        lab.api("/v1/contexts").as_array().is_some_and(|all| all.len() == 1).then_some(())
    });
    drop((job, other));
}

#[test]
fn a_guest_that_boots_again_has_no_device_of_its_last_life() {
    let Some(lab) = lab() else { return };
    let machines = Machine::pair(&lab);
    let [server, client] = &machines;
    let _agents = (server.serve(), client.serve());
    let stream = ["ib_write_bw", "-F", "-p", "18790", "-s", "1048576", "-D", "60"];
    let address = server.address();
    let to_server: Vec<&str> = stream.iter().copied().chain([address.as_str()]).collect();
    let job = server.start(&stream);
    job.wait_listening(18_790);
    let other = client.start(&to_server);
    // So many that the two no longer agree on something by TCP, which would not notice the end of the other side.
    until(LIMIT, "messages are on their way", || (lab.messages() > 2000).then_some(()));
    // The peer goes on to write while the machine is reset.
    server.guest().reset();
    assert!(!other.finish(LIMIT).status.success(), "the client has not noticed");
    server.wait_ready();
    no_device_is_open(&lab);
    drop(job);
    let _again = server.serve();
    exchange(&machines, "ibv_rc_pingpong", "-c -g 0 -n 100");
}

#[test]
fn a_guest_that_means_harm_reaches_nothing_but_itself() {
    let Some(lab) = lab() else { return };
    let machines = Machine::pair(&lab);
    let _agents = (machines[0].serve(), machines[1].serve());
    exchange(&machines, "ibv_rc_pingpong", "-c -g 0 -n 100");
    let script = rdmesh_tests::root().join("tests/programs/vsock.py").display().to_string();
    let run = |words: &[&str]| {
        let words: Vec<&str> = ["timeout", "60", "python3", &script].iter().chain(words).copied().collect();
        machines[0].run_plain(&words).ok();
    };
    // An ordinary user of the guest is no agent, and no program without the agent's token.
    machines[0]
        .run_plain(&["setpriv", "--reuid", "65534", "--clear-groups", "timeout", "60", "python3", &script, "user"])
        .ok();
    for attack in ["noise", "addresses", "order", "streams"] {
        run(&[attack]);
    }
    no_device_is_open(&lab);
    // The guest's root has been its agent meanwhile.
    let _again = machines[0].serve();
    exchange(&machines, "ibv_rc_pingpong", "-c -g 0 -n 100");
}

/// Bytes that the first host has sent to the other one over RDMA.
fn bytes_by_rdma(hosts: &Hosts) -> f64 {
    hosts.lab(0).metric("rdmesh_io_sent_bytes_total")
}

/// Accelerated connections of a guest: all to one endpoint share one reliable connection.
#[test]
fn connections_of_guests_go_over_the_device() {
    let Some(lab) = lab() else { return };
    let machines = Machine::pair(&lab);
    let [server, client] = &machines;
    let (agent, _other) = (server.serve(), client.serve());
    let streams = rdmesh_tests::root().join("tests/programs/sockets/streams.py").display().to_string();
    let (port, address) = (PORT.to_string(), server.address());
    let serve = |connections: &str, megabytes: &str| {
        let job = server.start_accelerated(&["python3", &streams, "serve", &port, connections, megabytes]);
        job.wait_listening(PORT);
        job
    };
    let are_right = |text: &str| assert!(text.contains("streams are right"), "{text}");
    let queue_pairs = || -> Vec<usize> {
        let contexts = lab.api("/v1/contexts");
        contexts.as_array().into_iter().flatten().filter_map(|context| Some(context["qps"].as_array()?.len())).collect()
    };
    // Between guests.
    let job = serve("8", "8");
    let connect = ["python3", &streams, "connect", &address, &port, "8", "8"];
    let other = client.start_accelerated(&connect);
    until(LIMIT, "bytes go over the device", || (lab.messages() > 100).then_some(()));
    assert_eq!(queue_pairs(), [1, 1], "a queue pair of each relay's");
    [job, other].into_iter().for_each(|job| are_right(&job.finish(LIMIT).ok().text));
    // From a container of the same host.
    let container = Endpoint::at("c", machine::NETWORK, "10.7.0.4").with(&["--accel"]);
    let job = serve("3", "24");
    let connect = ["python3", &streams, "connect", &address, &port, "3", "24"];
    let other = lab.start_in(&container, &connect);
    until(LIMIT, "the container's connections share another one", || queue_pairs().contains(&2).then_some(()));
    are_right(&other.finish(LIMIT).ok().text);
    are_right(&job.finish(LIMIT).ok().text);
    // A stock program.
    let redis = server.start_accelerated(&["redis-server", "--port", &port, "--save", "", "--protected-mode", "no"]);
    redis.wait_listening(PORT);
    let before = lab.messages();
    let benchmark = ["redis-benchmark", "-h", &address, "-p", &port, "-t", "set,get", "-n", "2000", "-c", "8", "-q"];
    let output = client.start_accelerated(&benchmark).finish(LIMIT).ok();
    assert!(output.text.contains("GET: "), "{}", output.text);
    assert!(lab.messages() > before + 1000, "{} messages of 4,000 requests", lab.messages() - before);
    redis.kill();
    drop(redis);
    // Without its relay a connection goes on over TCP.
    let job = serve("4", "16");
    let connect = ["python3", &streams, "connect", &address, &port, "4", "16"];
    let (other, before) = (client.start_accelerated(&connect), lab.messages());
    until(LIMIT, "bytes go over the device", || (lab.messages() > before + 100).then_some(()));
    agent.kill();
    [job, other].into_iter().for_each(|job| are_right(&job.finish(LIMIT).ok().text));
}

/// Numbers that a shell command prints in a machine.
fn numbers(machine: &Machine, script: &str) -> Vec<i64> {
    let text = machine.run_plain(&["sh", "-c", script]).ok().text;
    text.split_whitespace().map(|word| word.parse().expect("a number")).collect()
}

/// Takes most of a machine's free memory, and looks for a while whether it stays as it is.
fn canary(machine: &Machine) {
    let script = "import time\nfree = int([line for line in open('/proc/meminfo') if 'MemFree' in line][0].split()[1])\n\
                  block = bytes(range(256)) * 4096\nall = [bytearray(block) for _ in range(free * 7 // 10 // 1024)]\n\
                  time.sleep(0.5)\nassert all and not [one for one in all if one != block], 'memory has changed'";
    let script = format!("exec(\"\"\"{}\"\"\")", script.replace('\n', "\\n"));
    machine.run_plain(&["python3", "-c", &script]).ok();
}
