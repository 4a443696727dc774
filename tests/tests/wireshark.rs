//! `docs/rdmesh.lua` in tshark: what rdmesh adds to RoCEv2, taken apart.

use rdmesh_tests::{Hosts, Program, until};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Fields, two or more, of the packets of a file that a filter chooses, a line each.
fn fields(file: &Path, filter: &str, names: &[&str]) -> Vec<Vec<String>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/rdmesh.lua");
    let mut tshark = Command::new("tshark");
    tshark.args(["-X", &format!("lua_script:{}", script.display()), "-r"]).arg(file);
    tshark.args(["-c", "5000", "-Y", filter, "-T", "fields"]);
    tshark.args(names.iter().flat_map(|name| ["-e", name]));
    let output = Program::start(tshark).finish(LIMIT).ok();
    assert!(!output.text.contains("Lua"), "{}", output.text);
    // Beside it tshark warns of root.
    let rows = output.text.lines().filter(|line| line.contains('\t'));
    rows.map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

#[test]
fn acknowledgements_and_seals_are_taken_apart() {
    let hosts = Hosts::start();
    let program = |address: &str| format!("exec ib_write_bw -F -p 18640 -s 65536 --run_infinitely {address}");
    let mut server = hosts.lab(0).start_in(&Hosts::endpoint(0, "blue"), &["sh", "-c", &program("")]);
    server.wait_listening(18640);
    let mut client = hosts.lab(1).start_in(&Hosts::endpoint(1, "blue"), &["sh", "-c", &program(&Hosts::ip(0))]);
    until(LIMIT, "the client sends", || (hosts.lab(1).messages() > 0).then_some(()));
    hosts.set_faults("loss=5%");
    let folder = tempfile::tempdir().expect("a folder");
    let [inner, outer] = ["inner", "outer"].map(|name| folder.path().join(name));
    let inside = inner.display().to_string();
    hosts.lab(1).command(&["capture", "e", "--net", "blue", "--seconds", "0.5", "-w", &inside]).ok();
    // The tunnel, as anybody on the network sees it.
    let mut tshark = Command::new("ip");
    tshark.args([
        "netns",
        "exec",
        hosts.netns(0),
        "tshark",
        "-q",
        "-i",
        "any",
        "-f",
        "udp port 6081",
        "-c",
        "300",
        "-w",
    ]);
    Program::start({
        tshark.arg(&outer);
        tshark
    })
    .finish(LIMIT)
    .ok();
    for process in [&mut client, &mut server] {
        process.kill();
    }

    let acks = fields(
        &inner,
        "rdmesh.ack",
        &["infiniband.bth.opcode", "rdmesh.ack.expected", "rdmesh.ack.held", "rdmesh.ack.ranges"],
    );
    let gap = acks.iter().find(|row| row[2] != "0").unwrap_or_else(|| panic!("no gap in {acks:?}"));
    let number = |text: &str| text.parse::<u32>().unwrap_or_else(|_| panic!("{text} in {gap:?}"));
    let (expected, held) = (number(&gap[1]), number(&gap[2]));
    let ranges = gap[3].split(", ").map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        (number(first), number(last))
    });
    let ranges: Vec<(u32, u32)> = ranges.collect();
    assert_eq!(gap[0], "220");
    assert!(ranges.iter().all(|(first, last)| *first > expected && first <= last), "{gap:?}");
    assert_eq!(ranges.iter().map(|(first, last)| last - first + 1).sum::<u32>(), held, "{gap:?}");
    assert!(
        !fields(&inner, "rdmesh.repeated == 1", &["frame.number", "infiniband.bth.psn"]).is_empty(),
        "nothing was sent again"
    );

    let seals =
        fields(&outer, "rdmesh.seal", &["rdmesh.seal.session", "rdmesh.seal.sequence", "rdmesh.takes_selective"]);
    assert!(seals.len() > 100 && seals.iter().all(|row| row[0].starts_with("0x") && row[2] == "1"), "{seals:?}");
}

#[test]
fn probes_and_their_answers_are_taken_apart() {
    let hosts = Hosts::start();
    let folder = tempfile::tempdir().expect("a folder");
    let probes = folder.path().join("probes");
    hosts.lab(0).command(&["endpoint", "add", "e", "--net", "blue", "--ip", &Hosts::ip(0)]).ok();
    let mut capture = hosts.lab(0).rdmesh();
    capture.args(["capture", "e", "--net", "blue", "--seconds", "2", "-w", &probes.display().to_string()]);
    let capture = Program::start(capture);
    until(LIMIT, "the capture has begun", || probes.exists().then_some(()));
    hosts.lab(0).command(&["trace", "blue/e", &Hosts::ip(1)]);
    capture.finish(LIMIT).ok();
    let answers = fields(
        &probes,
        "rdmesh.probe.answer == 1",
        &["rdmesh.probe.tid", "rdmesh.probe.endpoint", "rdmesh.probe.version"],
    );
    assert!(!answers.is_empty() && answers.iter().all(|row| row[1] == "0"), "there is no endpoint: {answers:?}");
    assert_eq!(answers[0][2], env!("CARGO_PKG_VERSION"));
    let asked = fields(&probes, "rdmesh.probe.answer == 0", &["rdmesh.probe.tid", "frame.number"]);
    assert!(answers.iter().all(|answer| asked.iter().any(|probe| probe[0] == answer[0])), "{asked:?}\n{answers:?}");
}
