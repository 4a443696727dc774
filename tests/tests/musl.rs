//! musl: programs that are linked with it, as those of Alpine are, load the same library as those of glibc.

use rdmesh_tests::{Endpoint, Lab, Pair, suite, until};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const SERVER: &str = "10.7.0.2";

/// The build with musl.
fn build() -> Option<PathBuf> {
    suite::build_of("RDMESH_MUSL")
}

/// Compiles `source` with musl's compiler into a folder that is kept as long as what is returned first.
fn compile(source: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join(source);
    let made = Command::new("musl-gcc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(rdmesh_tests::root().join("tests/programs").join(source).with_extension("c"))
        .output()
        .expect("musl-gcc is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let program = program.display().to_string();
    (folder, program)
}

#[test]
fn any_program_starts_and_starts_others() {
    if build().is_none() {
        return;
    }
    let lab = Lab::start();
    let (_folder, program) = compile("plain");
    let run = |command: &[&str]| lab.run_in(&Endpoint::at("a", "blue", SERVER), LIMIT, command).ok().text;
    let expected = "thread 5, child 3, device rxe0\n";
    assert_eq!(run(&[&program]), expected);
    // Of the other libc, and back.
    assert_eq!(run(&[&program, "/bin/ls", "/sys/class/infiniband"]), format!("{expected}rxe0\n"));
    assert_eq!(run(&["/bin/sh", "-c", &format!("{program} {program}")]), expected.repeat(2));
    // Without an endpoint.
    let alone = Command::new(&program).env("LD_PRELOAD", rdmesh_tests::product("librdmesh.so")).output();
    let alone = alone.expect("it starts");
    assert!(alone.status.success(), "{alone:?}");
    assert!(String::from_utf8_lossy(&alone.stdout).starts_with("thread 5, child 3, "), "{alone:?}");
    assert!(alone.stderr.is_empty(), "{alone:?}");
}

#[test]
fn the_library_asks_for_nothing_that_musl_has_not() {
    let output = Command::new("readelf").arg("--dynamic").arg(rdmesh_tests::product("librdmesh.so")).output();
    let text = String::from_utf8(output.expect("binutils").stdout).expect("names");
    let needed: Vec<&str> = text.lines().filter(|line| line.contains("(NEEDED)")).collect();
    // The names that musl takes for itself.
    let is_musls =
        |line: &&str| ["[libc.", "[libpthread.", "[libdl.", "[librt.", "[libm."].iter().any(|n| line.contains(n));
    assert!(!needed.is_empty() && needed.iter().all(is_musls), "{needed:?}");
}

#[test]
fn verbs_programs_work_with_each_other_and_with_glibcs() {
    let Some(build) = build() else { return };
    let lab = Lab::start();
    let pair = Pair::of(&lab);
    let program = |name: &str| build.join("bin").join(name).display().to_string();
    let devinfo = lab.run_in(&pair.server.1, LIMIT, &[program("ibv_devinfo").as_str(), "-v"]).ok().text;
    for expected in ["hca_id:\trxe0", "PORT_ACTIVE", "::ffff:10.7.0.2, RoCE v2"] {
        assert!(devinfo.contains(expected), "{expected:?} is missing:\n{devinfo}");
    }
    let musls = program("ibv_rc_pingpong");
    for options in ["-g 1", "-g 1 -e -c -s 100000 -n 500"] {
        for (server, client) in
            [(musls.as_str(), musls.as_str()), (&musls, "ibv_rc_pingpong"), ("ibv_rc_pingpong", &musls)]
        {
            let with = |program| [&[program, "-p", "18600"][..], &options.split(' ').collect::<Vec<_>>()].concat();
            let text = pair.run_both(&with(server), &[with(client), vec![SERVER]].concat());
            assert!(text.contains(" iters in "), "{server} and {client}, {options}:\n{text}");
        }
    }
    lab.wait_until_empty();
}

#[test]
fn connections_are_made_between_the_two() {
    let Some(build) = build() else { return };
    let lab = Lab::start();
    let pair = Pair::of(&lab);
    let musls = build.join("bin/rping").display().to_string();
    for (server, client) in [(musls.as_str(), "rping"), ("rping", musls.as_str())] {
        let mut serving = lab.start_in(&pair.server.1, &[server, "-s", "-C", "20", "-a", SERVER]);
        until(LIMIT, "the server listens", || {
            assert!(serving.is_running(), "{}", serving.text());
            lab.has_listener(&serving).then_some(())
        });
        lab.run_in(&pair.client.1, LIMIT, &[client, "-c", "-C", "20", "-a", SERVER]).ok();
        serving.finish(LIMIT).ok();
    }
    lab.wait_until_empty();
}
