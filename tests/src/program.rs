//! Running programs: output is collected, each has a deadline, and it is killed with its children on drop.

use crate::wait::until;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
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
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot start {what}: {e}"));
        let output = Arc::new(Mutex::new(Text::default()));
        let readers = vec![
            collect(child.stdout.take().expect("piped"), output.clone(), true),
            collect(child.stderr.take().expect("piped"), output.clone(), false),
        ];
        Self { stdin: child.stdin.take(), child, output, lines_read: 0, readers, what }
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
        let _ = self.child.wait();
    }

    fn text_now(&self) -> MutexGuard<'_, Text> {
        self.output.lock().expect("no reader panics")
    }

    fn join_readers(&mut self) {
        self.readers.drain(..).for_each(|r| r.join().expect("readers do not panic"));
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
