//! `rdmesh capture`: writes an endpoint's packets to a pcap file.

use crate::args::CaptureOptions;
use crate::failure::Failure;
use crate::show::say;
use rdmesh_fabric::Client;
use rdmesh_fabric::api::StartCapture;
use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Write, stdout};
use std::path::Path;
use std::time::{Duration, Instant};

/// Writes an endpoint's packets to a file, or to the standard output, until it is interrupted.
pub(crate) fn capture(options: &CaptureOptions, client: &Client) -> Result<(), Failure> {
    let mut file = open(options.write.as_deref())?;
    let request =
        StartCapture { network: options.net.clone(), endpoint: options.name.clone(), snap_len: options.snap_len };
    let id = client.start_capture(&request)?.id;
    say(format!("Capturing the packets of `{}`; Ctrl-C ends it.", options.name));
    let end = options.seconds.and_then(|s| Instant::now().checked_add(Duration::try_from_secs_f64(s).ok()?));
    let written = loop {
        let is_last = end.is_some_and(|end| Instant::now() >= end);
        let written = client.read_capture(id).map(|part| file.write_all(&part).and_then(|()| file.flush()))?;
        if is_last || written.is_err() {
            break written;
        }
        std::thread::sleep(EVERY);
    };
    let lost = client.stop_capture(id)?.lost;
    if lost != 0 {
        say(format!("{lost} packets came too fast and are missing."));
    }
    match written {
        // The reader of a pipe has closed it.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::unread()),
        written => Ok(written?),
    }
}

fn open(path: Option<&Path>) -> Result<Box<dyn Write>, Failure> {
    match path {
        Some(path) if path != Path::new("-") => {
            let file = File::create(path).map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
            Ok(Box::new(file))
        }
        _ if stdout().is_terminal() => {
            Err(Failure::new("a capture is no text: name a file with -w, or pipe it into `wireshark -k -i -`"))
        }
        _ => Ok(Box::new(stdout())),
    }
}

/// Interval at which copies are fetched; the router keeps some thousand packets meanwhile.
const EVERY: Duration = Duration::from_millis(20);
