//! `rdmesh capture`: writes an endpoint's packets to a pcap file.

use crate::args::CaptureOptions;
use crate::failure::Failure;
use crate::show::say;
use rdmesh_fabric::Client;
use rdmesh_fabric::api::StartCapture;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, IsTerminal, Write, stdout};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
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
            let file = create(path).map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
            Ok(Box::new(file))
        }
        _ if stdout().is_terminal() => {
            Err(Failure::new("a capture is no text: name a file with -w, or pipe it into `wireshark -k -i -`"))
        }
        _ => Ok(Box::new(stdout())),
    }
}

/// A new file, or an old one emptied, that its owner alone may read: it will hold what programs send. A link is not followed:
/// root captures, and the folder may be another user's.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let file = options.open(path)?;
    if file.metadata()?.is_file() {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Interval at which copies are fetched; the router keeps some thousand packets meanwhile.
const EVERY: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_capture_is_its_owners_alone_and_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        create(&file).unwrap();
        let metadata = fs::metadata(&file).unwrap();
        assert_eq!((metadata.permissions().mode() & 0o777, metadata.len()), (0o600, 0));
        symlink(&file, &link).unwrap();
        assert!(create(&link).is_err());
    }
}
