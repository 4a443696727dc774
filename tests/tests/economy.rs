//! Cost of the data path beside the copy: system calls per message, and processor time when idle.

use rdmesh_tests::{Endpoint, Lab, Options, helper, system, trace, until};
use std::ffi::OsString;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
const PORT: u16 = 18600;

#[test]
fn a_message_takes_no_system_call() {
    const MESSAGES: u64 = 300_000;
    let mut lab = Lab::start_with(Options { traced: true, ..Options::default() });
    let (a, b) = (Endpoint::at("a", "blue", "10.7.0.2"), Endpoint::at("b", "blue", "10.7.0.3"));
    let table = lab.dir().with_file_name("strace.client");
    let mut command: Vec<OsString> = trace::strace(&table);
    let program = format!("ib_write_bw -F -N -p {PORT} -s 2048 -n {MESSAGES}");
    let server: Vec<OsString> = program.split(' ').map(OsString::from).collect();
    command.extend(server.iter().cloned().chain(["10.7.0.2".into()]));
    lab.pair((&a, &server), (&b, &command), PORT, LIMIT);
    for (who, calls) in [("client", trace::total(&table)), ("router", lab.end_traced())] {
        let each = calls as f64 / MESSAGES as f64;
        println!("{who}: {each:.5} system calls a message, yields apart");
        // Setting up counts, and on a busy machine both sleep where they would yield; the benchmark has the fine figure.
        assert!(each < 0.1, "{who}: {calls} system calls for {MESSAGES} messages");
    }
}

/// Memory that was registered before is registered with one question to the kernel (is it still what it was?) and one message,
/// and deregistered with one.
#[test]
fn known_memory_is_registered_with_few_system_calls() {
    const ROUNDS: u64 = 2_000;
    let lab = Lab::start();
    let table = lab.dir().with_file_name("strace.program");
    let mut command = trace::strace(&table);
    command.extend([helper("registration").into_os_string(), "4".into(), ROUNDS.to_string().into()]);
    lab.run_in(&Endpoint::new("program"), LIMIT, &command).ok();
    let each = trace::total(&table) as f64 / ROUNDS as f64;
    println!("{each:.2} system calls for a registration and a deregistration");
    // Checks of descriptors (3), the process id, the mapping, and two messages with their answers make 9.
    assert!(each < 10.0, "{each:.2} system calls");
}

/// However programs end, an endpoint that stays holds nothing of the router's when they have.
#[test]
fn what_programs_held_is_given_back() {
    let lab = Lab::start();
    let idle = helper("idle").display().to_string();
    let mut shell = lab.start_in(&Endpoint::new("stays"), &["sh", "-c", CHURN, &idle]);
    let held = || ["descriptors", "mappings", "memory_bytes"].map(|kind| lab.metric(&format!("rdmesh_held_{kind}")));
    let before = held();
    for how in ["kill", "end", "kill", "end"] {
        shell.say(how);
        assert_eq!(shell.next_line(LIMIT), "idle");
        assert!(held()[0] >= before[0] + 64.0 * 4.0, "a device takes four: {:?}", held());
        shell.say("");
        assert_eq!(shell.next_line(LIMIT), "ended");
        lab.wait_until_empty();
        until(LIMIT, "everything is given back", || (held() == before).then_some(()));
    }
}

/// Runs the program with 64 devices, again and again, and ends it as it is told.
const CHURN: &str = "
while read how; do
    if [ $how = kill ]; then
        \"$0\" 64 < /dev/zero & read go; kill -9 $!; wait $! 2> /dev/null
    else
        { read go; } | \"$0\" 64
    fi
    echo ended
done";

#[test]
fn idle_contexts_cost_nothing() {
    let lab = Lab::start();
    let mut idle = lab.start_in(&Endpoint::new("idle"), &[helper("idle").into_os_string(), "64".into()]);
    assert_eq!(idle.next_line(LIMIT), "idle");
    assert_eq!(lab.status()["contexts"], 64);
    let router = lab.router_pid();
    // The workers fall asleep a moment after the last message: wait for that, then measure a stretch of real time.
    until(LIMIT, "the router comes to rest", || {
        let before = system::cpu_seconds(router);
        std::thread::sleep(Duration::from_millis(200));
        (system::cpu_seconds(router) - before < 0.01).then_some(())
    });
    let (before, begin) = (system::cpu_seconds(router), Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let share = (system::cpu_seconds(router) - before) / begin.elapsed().as_secs_f64();
    println!("64 idle contexts: {:.3} % of a core", share * 100.0);
    assert!(share < 0.01, "{:.2} % of a core", share * 100.0);
    idle.close_stdin();
    idle.finish(LIMIT).ok();
}
