//! `rdmesh top` on a terminal.

use rdmesh_tests::{Endpoint, Lab, Program, until};
use std::fs;
use std::process::Command;
use std::time::Duration;
use tempfile::NamedTempFile;

const LIMIT: Duration = Duration::from_secs(60);

/// The command as on a terminal of 140 by 30 characters, and all that it writes there.
struct OnTerminal {
    program: Program,
    screen: NamedTempFile,
}

impl OnTerminal {
    fn start(lab: &Lab, arguments: &str) -> Self {
        let screen = NamedTempFile::new().expect("a file");
        let rdmesh = lab.rdmesh();
        let command = format!("stty rows 30 cols 140 && exec {} {arguments}", rdmesh.get_program().display());
        let mut script = Command::new("script");
        script.args(["-qefc", &command]).arg(screen.path()).env("TERM", "xterm").env("RDMESH_STATE", lab.dir());
        Self { program: Program::start(script), screen }
    }

    /// Waits for its end, which is a success; all that it wrote.
    fn finish(self) -> String {
        assert!(self.program.finish(LIMIT).status.success());
        text(&self.screen)
    }

    /// Waits until the screen shows a text.
    fn shows(&self, wanted: &str) {
        until(LIMIT, wanted, || {
            let mut terminal = vt100::Parser::new(30, 140, 0);
            terminal.process(text(&self.screen).as_bytes());
            terminal.screen().contents().contains(wanted).then_some(())
        });
    }
}

fn text(screen: &NamedTempFile) -> String {
    String::from_utf8_lossy(&fs::read(screen.path()).expect("the file is ours")).into_owned()
}

#[test]
fn it_is_a_live_view_that_keys_change_and_end() {
    let lab = Lab::start();
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let server_at = Endpoint::at("a", "blue", "10.7.0.2");
    let mut server = lab.start_in(&server_at, &words("ib_write_bw -F --run_infinitely"));
    server.wait_listening(18_515);
    let client_at = Endpoint::at("b", "blue", "10.7.0.3");
    let mut client = lab.start_in(&client_at, &words("ib_write_bw -F --run_infinitely 10.7.0.2"));
    let mut top = OnTerminal::start(&lab, "top --interval 0.1");
    // What is sent, by whom, and the graph of it.
    for wanted in ["2 programs", "ib_write_bw", "iB/s sent", "\u{2588}"] {
        top.shows(wanted);
    }
    top.program.say("/nobody\r");
    top.shows("filter: nobody");
    // Until all is shown again.
    top.program.say("/\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}\r");
    top.shows("q: end");
    server.kill();
    client.kill();
    lab.wait_until_empty();
    top.shows("0 programs");
    lab.command(&["down"]).ok();
    top.shows("no router is running");
    lab.up_again();
    top.program.say("q");
    let text = top.finish();
    let (entered, left) = (text.find("\u{1b}[?1049h"), text.rfind("\u{1b}[?1049l"));
    assert!(entered.is_some() && left > entered, "the terminal is as before");
}

#[test]
fn without_a_terminal_and_for_a_number_of_updates_it_is_a_table() {
    let lab = Lab::start();
    let text = lab.command(&["top", "--count", "2", "--interval", "0.1"]).ok().text;
    assert_eq!(text.matches("RETRANSMITTED/s").count(), 2, "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    let text = OnTerminal::start(&lab, "top --count 1 --interval 0.1").finish();
    assert!(text.contains("HELD BY A RATE") && !text.contains("?1049"), "{text}");
}
