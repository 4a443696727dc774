//! `rdmesh page`: what a browser shows, and who is answered.

use rdmesh_tests::{Endpoint, Lab, Program, all, root, system, until};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
/// Endpoints of a pool, beside those of the programs: more than a table shows at once.
const POOL: u32 = 520;
/// Likewise in the long form.
const LARGE_POOL: u32 = 1000;

/// The page's process, with its address.
fn start(lab: &Lab) -> (Program, String) {
    let mut page = lab.rdmesh();
    page.arg("page");
    let mut page = Program::start(page);
    let url = page.next_line(LIMIT);
    (page, url.trim().to_owned())
}

/// Status line, headers and body of an answer.
fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the page is served");
    stream.set_read_timeout(Some(LIMIT)).expect("a socket has one");
    write!(stream, "{request}\r\nhost: {address}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

/// Address, and name and value of the key.
fn parts(url: &str) -> (&str, &str) {
    url.strip_prefix("http://").and_then(|rest| rest.split_once("/?")).expect("an address with a key")
}

#[test]
fn only_who_has_the_key_is_answered() {
    let lab = Lab::start();
    let (_page, url) = start(&lab);
    let (address, key) = parts(&url);
    let wrong = format!("{}0", &key[..key.len() - 1]);
    let wrong = if wrong == key { format!("{}1", &key[..key.len() - 1]) } else { wrong };
    for request in [
        "GET / HTTP/1.1".to_owned(),
        "GET /snapshot.json HTTP/1.1".to_owned(),
        "GET /page.js HTTP/1.1".to_owned(),
        format!("GET /?{wrong} HTTP/1.1"),
        format!("GET /snapshot.json HTTP/1.1\r\ncookie: {wrong}"),
    ] {
        let answer = ask(address, &request);
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("rdmesh page"), "{request}: {answer}");
    }
    let entry = ask(address, &format!("GET /?{key} HTTP/1.1"));
    assert!(entry.starts_with("HTTP/1.1 303") && entry.contains(&format!("set-cookie: {key}; HttpOnly")), "{entry}");
    let with_key = |line: &str| ask(address, &format!("{line} HTTP/1.1\r\ncookie: theme=dark; {key}"));
    let snapshot = with_key("GET /snapshot.json");
    assert!(snapshot.starts_with("HTTP/1.1 200") && snapshot.contains("\"endpoints\":[]"), "{snapshot}");
    // It shows, and changes nothing.
    for (line, status) in [("POST /snapshot.json", 405), ("POST /v1/shutdown", 404), ("GET /v1/status", 404)] {
        let answer = with_key(line);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{line}: {answer}");
    }
    let elsewhere = lab.command(&["page", "--listen", "0.0.0.0:0"]);
    assert!(!elsewhere.status.success() && elsewhere.text.contains("ssh -L"), "{}", elsewhere.text);
    lab.command(&["down"]).ok();
    let gone = with_key("GET /snapshot.json");
    assert!(gone.starts_with("HTTP/1.1 502") && gone.contains("rdmesh up"), "{gone}");
    lab.up_again();
    assert!(with_key("GET /snapshot.json").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_browser_shows_what_goes_on() {
    let lab = Lab::start();
    let size = if all() { LARGE_POOL } else { POOL };
    let count = (size + 2).to_string();
    let size = size.to_string();
    let mut pool = vec!["pool", "create", "many", "--net", "blue", "--size", &size];
    pool.extend(system::cgroup2().is_none().then_some("--share-addresses"));
    lab.command(&pool).ok();
    lab.command(&["policy", "set", "tenant/default", "--rate", "1G"]).ok();
    let ends = ["server", "client"].map(|name| Endpoint::new(name).with(&["--net", "blue"]));
    let server = lab.start_in(&ends[0], &["ib_write_bw", "-F", "-D", "200"]);
    let address = address_of(&lab, "server");
    let _client = lab.start_in(&ends[1], &["ib_write_bw", "-F", "-D", "200", &address]);
    let (_page, url) = start(&lab);
    let pictures = std::env::var("RDMESH_PICTURES").unwrap_or_else(|_| "-".to_owned());
    let mut browser = Command::new("/usr/bin/python3");
    browser.arg(root().join("tests/programs/page.py")).args([&url, &count, &pictures]);
    browser.arg(axe());
    let mut browser = Program::start(browser);
    while !browser.next_line(LIMIT).starts_with("ready") {}
    drop(server);
    lab.command(&["down"]).ok();
    browser.say("gone");
    let output = browser.finish(LIMIT).ok();
    eprintln!("{}", output.text);
    assert!(output.text.contains("Not up to date: "), "{}", output.text);
}

/// The script of axe-core.
fn axe() -> String {
    let path = std::env::var("RDMESH_AXE").expect("`./dev test page` fetches it, and says where it is");
    assert!(Path::new(&path).exists(), "{path} is missing: `./dev setup page` fetches it");
    path
}

fn address_of(lab: &Lab, name: &str) -> String {
    until(LIMIT, "the endpoint is there", || {
        let endpoints = lab.api("/v1/endpoints");
        let found = endpoints.as_array()?.iter().find(|endpoint| endpoint["name"] == name)?;
        Some(found["addresses"][0].as_str()?.to_owned())
    })
}
