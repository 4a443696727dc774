//! `rdmesh diagnose`: what a bug report has, and has not.

use rdmesh_tests::{Lab, Options};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The files of an archive, by their names below its folder.
fn unpack(archive: &Path) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archive).args(["--strip-components=1", "-C"]).arg(folder.path());
    assert!(tar.status().expect("tar starts").success());
    let (mut files, mut folders) = (BTreeMap::new(), vec![folder.path().to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder.path()).expect("below it").display().to_string();
                files.insert(name, fs::read_to_string(&path).expect("text"));
            }
        }
    }
    files
}

#[test]
fn an_archive_says_what_a_report_needs_and_no_secret() {
    let lab = Lab::start_with(Options { rootless: true, ..Options::default() });
    lab.command(&["endpoint", "add", "a", "--net", "blue"]).ok();
    // As a careless operator's log has it.
    let log = lab.dir().join("router.log");
    let mut log = fs::File::options().append(true).open(log).expect("the log is ours");
    log.write_all(b"store etcd://root:s3cr3t@192.0.2.9:2379 is away\n").expect("the log is ours");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let archive = folder.path().join("report.tar.gz");
    let output = archive.display().to_string();
    assert!(lab.command(&["diagnose", "--output", &output]).ok().text.contains("Look through it before you send it"));
    assert_eq!(fs::metadata(&archive).expect("an archive").permissions().mode() & 0o777, 0o600);
    let files = unpack(&archive);
    let json = |name: &str| -> Value {
        let text = files.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", files.keys()));
        serde_json::from_str(text).expect("JSON")
    };
    assert_eq!(json("api/endpoints.json")[0]["name"], "a");
    assert!(json("doctor.json")[0]["message"].as_str().is_some_and(|message| message.contains("running")));
    assert!(json("api/stats.json").is_object());
    assert!(files["about.txt"].starts_with("rdmesh ") && files["network.txt"].contains("ip -s -d link"));
    assert!(files["router/command.txt"].contains("router") && files["limits.txt"].contains("max_map_count"));
    assert!(files["router.log"].contains("etcd://(removed)@192.0.2.9:2379 is away"), "{}", files["router.log"]);
    assert!(files.values().all(|text| !text.contains("s3cr3t")));
    // What is there already stays as it is.
    assert!(!lab.command(&["diagnose", "--output", &output]).status.success());
}

#[test]
fn without_a_router_an_archive_says_so() {
    let lab = Lab::start_with(Options { rootless: true, ..Options::default() });
    lab.command(&["down"]).ok();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let archive = folder.path().join("report.tar.gz");
    lab.command(&["diagnose", "--output", &archive.display().to_string()]).ok();
    let files = unpack(&archive);
    assert!(files["api/status.json.missing"].contains("rdmesh up"), "{:?}", files.keys());
    assert!(files.contains_key("router.log") && files.contains_key("doctor.json"), "{:?}", files.keys());
    lab.up_again();
}
