//! Keys and certificates whose files are replaced while the gateway serves.

use crate::tls::{Credentials, CredentialsError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

/// The credentials in force, and the state of their files when these were read.
pub(crate) struct Renewal {
    credentials: Credentials,
    seen: Vec<Option<Stamp>>,
    current: watch::Sender<TlsAcceptor>,
}

/// State of a file, which changes when the file does; none where it cannot be looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    changed: (i64, i64),
}

impl Renewal {
    /// Reads the files for the first time.
    pub(crate) fn start(credentials: Credentials) -> Result<Self, CredentialsError> {
        // Before they are read: what changes meanwhile is read once more.
        let seen = stamps(&credentials);
        let current = watch::Sender::new(credentials.acceptor()?);
        Ok(Self { credentials, seen, current })
    }

    /// The acceptor in force; it changes with the files.
    pub(crate) fn subscribe(&self) -> watch::Receiver<TlsAcceptor> {
        self.current.subscribe()
    }

    /// Looks at the files again and again.
    pub(crate) async fn follow(mut self) {
        loop {
            sleep(INTERVAL).await;
            match self.look() {
                Ok(false) => {}
                Ok(true) => tracing::info!("keys and certificates were read again"),
                Err(error) => tracing::warn!(%error, "keys and certificates stay as they were"),
            }
        }
    }

    /// Reads the files again if they have changed; returns whether they have. What cannot be used replaces nothing.
    fn look(&mut self) -> Result<bool, CredentialsError> {
        let stamps = stamps(&self.credentials);
        if stamps == self.seen {
            return Ok(false);
        }
        self.seen = stamps;
        let acceptor = self.credentials.acceptor()?;
        self.current.send_replace(acceptor);
        Ok(true)
    }
}

impl Stamp {
    fn of(file: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(file).ok()?;
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        Some(Self { device: metadata.dev(), inode: metadata.ino(), len: metadata.len(), changed })
    }
}

fn stamps(credentials: &Credentials) -> Vec<Option<Stamp>> {
    let Credentials { certificate, key, client_ca, revoked } = credentials;
    [certificate, key, client_ca].into_iter().chain(revoked).map(|file| Stamp::of(file)).collect()
}

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(5);
