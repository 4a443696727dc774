//! Third-party software on verbs, row by row, between endpoints of one host and of two.

use rdmesh_tests::software::{Measured, Ready, Row, page, rows};
use rdmesh_tests::{Endpoint, Hosts, Lab, Pair, example, helper, mpi_programs, root};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// Set to have the page written instead of compared.
const PUBLISH: &str = "RDMESH_PUBLISH";
/// A part of the names of the rows that are run; all without it.
const ONLY: &str = "RDMESH_ROWS";

fn one_host(lab: &Lab) -> Pair<'_> {
    let at = |name, ip| (lab, Endpoint::at(name, "blue", ip));
    Pair { server: at("a", "10.7.0.2"), client: at("b", "10.7.0.3"), address: "10.7.0.2".to_owned() }
}

/// File in which the figures of this machine are collected.
fn collected() -> PathBuf {
    root().join("target/software.json")
}

fn run_all(hosts: usize, pair: &Pair<'_>) {
    helper("verify");
    mpi_programs();
    example("rust");
    let mut measured = Measured::load(&collected());
    let only = std::env::var(ONLY).unwrap_or_default();
    let mut failed = Vec::new();
    for row in rows().iter().filter(|row| row.name.contains(&only)) {
        let begin = Instant::now();
        match row.run(pair) {
            Ok(figure) => {
                let figure = figure.map_or_else(String::new, |value| measured.add(row, hosts, value));
                println!("{}: {}: works {figure} ({:.1} s)", row.theme, row.name, begin.elapsed().as_secs_f64());
            }
            Err(why) => {
                println!("{}: {}: FAILS", row.theme, row.name);
                failed.push(why);
            }
        }
    }
    measured.save(&collected());
    assert!(failed.is_empty(), "{} programs fail:\n{}", failed.len(), failed.join("\n\n"));
}

#[test]
fn a_all_programs_work_on_one_host() {
    let lab = Lab::start();
    run_all(1, &one_host(&lab));
    lab.wait_until_empty();
}

#[test]
fn b_all_programs_work_between_two_hosts() {
    let hosts = Hosts::start();
    run_all(2, &hosts.pair());
    [0, 1].iter().for_each(|number| hosts.lab(*number).wait_until_empty());
}

#[test]
fn c_the_page_lists_what_is_tested() {
    let folder = root().join("docs");
    let figures = folder.join("software.json");
    if std::env::var_os(PUBLISH).is_some() {
        let measured = Measured::load(&collected());
        measured.save(&figures);
        std::fs::write(folder.join("software.md"), page(&rows(), &measured)).expect("the page can be written");
    }
    let written = std::fs::read_to_string(folder.join("software.md")).unwrap_or_default();
    let expected = page(&rows(), &Measured::load(&figures));
    assert!(written == expected, "docs/software.md is not what is tested: run `./dev software --publish`");
}

#[test]
fn libraries_find_the_device() {
    let lab = Lab::start();
    let run = |command: &[&str]| lab.run_in(&Endpoint::at("a", "blue", "10.7.0.2"), LIMIT, command).ok().text;
    let ucx = run(&["ucx_info", "-d"]);
    for transport in ["rc_verbs", "ud_verbs"] {
        let found = ucx.split("Transport: ").any(|part| part.starts_with(transport) && part.contains("rxe0:1"));
        assert!(found, "UCX does not have {transport}:\n{ucx}");
    }
    let libfabric = run(&["fi_info", "-p", "verbs"]);
    for kind in ["FI_EP_MSG", "FI_EP_DGRAM", "FI_EP_RDM"] {
        assert!(libfabric.contains(kind), "libfabric does not have {kind}:\n{libfabric}");
    }
}

#[test]
fn rows_are_well_formed() {
    let rows = rows();
    let mut names: Vec<_> = rows.iter().map(|row: &Row| &row.name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), rows.len(), "two rows have the same name");
    for row in &rows {
        assert!(!row.client.contains('|') && !row.server.contains('|'), "{} breaks the table", row.name);
        let named =
            |port: u16| row.server.contains(&port.to_string()) || row.theme == "libfabric" || row.theme == "Examples";
        assert!(!matches!(row.ready, Ready::Port(port) if !named(port)), "{} waits for another port", row.name);
    }
}
