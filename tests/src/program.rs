//! Running programs: output is collected, each wait has a limit, and a program is killed with its descendants.
//!
//! A descendant may leave the process group and lose its parent, as the children of MPI's launchers do. A mark in the
//! environment, which children inherit, finds it all the same.

use crate::wait::until;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A program that was started.
pub struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    output: Arc<Mutex<Text>>,
    lines_read: usize,
    readers: Vec<JoinHandle<()>>,
    what: String,
    mark: String,
}

/// Output of a program.
#[derive(Default)]
struct Text {
    both: String,
    stdout: Vec<String>,
}

/// Exit status of a program, and its output on both streams.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its exit status.
    pub status: ExitStatus,
    /// Both streams, line by line as they came.
    pub text: String,
    pub(crate) what: String,
}

impl Program {
    /// Starts `command` in a process group of its own.
    pub fn start(mut command: Command) -> Self {
        use std::os::unix::process::CommandExt;
        let what = format!("{command:?}");
        let mark = next_mark();
        command.env(MARK, &mark);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot start {what}: {e}"));
        let output = Arc::new(Mutex::new(Text::default()));
        let readers = vec![
            collect(child.stdout.take().expect("piped"), output.clone(), true),
            collect(child.stderr.take().expect("piped"), output.clone(), false),
        ];
        Self { stdin: child.stdin.take(), child, output, lines_read: 0, readers, what, mark }
    }

    /// Process id of the started process itself.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its output so far, on both streams.
    pub fn text(&self) -> String {
        self.text_now().both.clone()
    }

    /// Waits for the next line on its standard output. Panics when it ends first, or at the time limit.
    pub fn next_line(&mut self, limit: Duration) -> String {
        let wanted = self.lines_read;
        let what = format!("a line from {}", self.what);
        let line = until(limit, &what, || {
            let ended = !self.is_running();
            if ended {
                self.join_readers();
            }
            let line = self.text_now().stdout.get(wanted).cloned();
            assert!(line.is_some() || !ended, "{} ended:\n{}", self.what, self.text());
            line
        });
        self.lines_read += 1;
        line
    }

    /// Writes a line to its standard input.
    pub fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("standard input is open");
        writeln!(stdin, "{line}").and_then(|()| stdin.flush()).unwrap_or_else(|e| panic!("{}: {e}", self.what));
    }

    /// Ends its standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it, or a process under it, listens on TCP `port` in its network namespace.
    pub fn wait_listening(&mut self, port: u16) {
        until(Duration::from_secs(30), &format!("port {port} of {}", self.what), || {
            assert!(self.is_running(), "{} ended before it listened:\n{}", self.what, self.text());
            self.listens(port).then_some(())
        });
    }

    /// Whether it, or a process under it, receives on UDP `port` in its network namespace.
    pub fn receives(&self, port: u16) -> bool {
        crate::system::family(self.pid()).into_iter().any(|p| crate::system::receives(p, port))
    }

    /// Whether it, or a process under it, listens on TCP `port` in its network namespace.
    pub fn listens(&self, port: u16) -> bool {
        crate::system::family(self.pid()).into_iter().any(|p| crate::system::listens(p, port))
    }

    /// Waits for its end; kills it and panics when that takes longer than `limit`.
    pub fn finish(self, limit: Duration) -> Output {
        let what = self.what.clone();
        let text = self.output.clone();
        self.finish_or_kill(limit).unwrap_or_else(|| {
            panic!("{what} did not end within {limit:?}:\n{}", text.lock().expect("no reader panics").both)
        })
    }

    /// Waits for its end; kills it, and gives nothing, when that takes longer than `limit`.
    pub fn finish_or_kill(mut self, limit: Duration) -> Option<Output> {
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the child is ours") {
                break status;
            }
            if Instant::now() > deadline {
                self.kill();
                return None;
            }
            std::thread::sleep(crate::TICK);
        };
        self.join_readers();
        Some(Output { status, text: self.text(), what: self.what.clone() })
    }

    /// Asks it to end, and kills it when it has not done so within `limit`.
    pub fn terminate(&mut self, limit: Duration) {
        self.signal_and_wait(Signal::TERM, limit);
    }

    /// Asks it to end as Ctrl-C does, and kills it when it has not done so within `limit`.
    pub fn interrupt(&mut self, limit: Duration) {
        self.signal_and_wait(Signal::INT, limit);
    }

    fn signal_and_wait(&mut self, signal: Signal, limit: Duration) {
        if let Some(pid) = Pid::from_raw(self.pid() as i32) {
            let _ = kill_process(pid, signal);
        }
        let deadline = Instant::now() + limit;
        while self.is_running() && Instant::now() < deadline {
            std::thread::sleep(crate::TICK);
        }
        self.kill();
    }

    /// Kills it and everything in its group, without a word of warning.
    pub fn kill(&mut self) {
        let family = crate::system::family(self.pid());
        if let Some(group) = Pid::from_raw(self.pid() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        family.into_iter().skip(1).for_each(crate::system::kill);
        self.kill_marked();
        let _ = self.child.wait();
    }

    /// Kills the processes that carry its mark, wherever they are; describes each.
    fn kill_marked(&self) -> Vec<String> {
        let marked = crate::system::with_variable(MARK, &self.mark);
        let described = marked.iter().map(|pid| format!("{pid} {}", crate::system::command_line(*pid))).collect();
        marked.into_iter().for_each(crate::system::kill);
        described
    }

    fn text_now(&self) -> MutexGuard<'_, Text> {
        self.output.lock().expect("no reader panics")
    }

    /// Reads the rest of its output. A descendant that holds the output open for longer than a grace period is killed, and the
    /// output says so.
    fn join_readers(&mut self) {
        if !self.readers_end_within(LEFT_OVER_GRACE) {
            let left_over = self.kill_marked().join("; ");
            let note = format!("[killed: held the output open after the program's end: {left_over}]\n");
            self.text_now().both.push_str(&note);
            eprint!("{}: {note}", self.what);
            // Who holds it now carries no mark. Its reader stays behind rather than this thread.
            self.readers_end_within(LEFT_OVER_GRACE);
        }
        self.readers.retain(|reader| !reader.is_finished());
    }

    fn readers_end_within(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while !self.readers.iter().all(JoinHandle::is_finished) {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(crate::TICK);
        }
        true
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.is_running() {
            self.kill();
        }
    }
}

impl Output {
    /// Panics, showing the output, unless the program ended with success.
    pub fn ok(self) -> Self {
        assert!(self.status.success(), "{} ended with {}:\n{}", self.what, self.status, self.text);
        self
    }
}

/// A value of [`MARK`] that no other program of this machine has.
fn next_mark() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn collect(stream: impl Read + Send + 'static, into: Arc<Mutex<Text>>, is_stdout: bool) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut lines = BufReader::new(stream);
        let mut bytes = Vec::new();
        while matches!(lines.read_until(b'\n', &mut bytes), Ok(n) if n > 0) {
            let line = String::from_utf8_lossy(&bytes);
            let mut text = into.lock().expect("no reader panics");
            text.both.push_str(&line);
            if is_stdout {
                text.stdout.push(line.trim_end().to_owned());
            }
            drop(text);
            bytes.clear();
        }
    })
}

/// Environment variable that a program and its descendants share.
const MARK: &str = "RDMESH_TEST_PROGRAM";

/// Time that descendants have, after a program's end, to close its output.
const LEFT_OVER_GRACE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// As an MPI launcher left it: a process in a session of its own that holds the output open.
    #[test]
    fn a_child_that_is_left_behind_is_killed_and_named() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "setsid sleep 987 & echo started $!"]);
        let output = Program::start(shell).finish(Duration::from_secs(30)).ok();
        assert!(output.text.contains("sleep 987"), "{}", output.text);
        let pid = output.text.split_whitespace().nth(1).and_then(|pid| pid.parse().ok()).expect("a process id");
        until(Duration::from_secs(5), "the child is gone", || {
            (!crate::system::command_line(pid).contains("sleep 987")).then_some(())
        });
    }

    #[test]
    fn a_program_is_killed_with_what_left_its_process_group() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "(setsid sleep 986 & echo $!); sleep 985"]);
        let mut program = Program::start(shell);
        let pid = program.next_line(Duration::from_secs(30)).parse().expect("a process id");
        program.kill();
        until(Duration::from_secs(5), "the child is gone", || {
            (!crate::system::command_line(pid).contains("sleep 986")).then_some(())
        });
    }
}
