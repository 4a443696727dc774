//! A journal on disk, from which the embedded store is restored after its router has died.
//!
//! One line of JSON for each change, or for those of one transaction. A router that is killed while it writes leaves a last line that is not valid JSON, which
//! is ignored. The journal does not survive a crash of the machine: nothing is synchronised to the disk.

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Changes, in the order in which they were made.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines.
    len: u64,
    lines: usize,
    /// A line could not be written: the file has to be written anew.
    is_stale: bool,
}

/// A line: changes that were made at once.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line<R> {
    One(R),
    All(Vec<R>),
}

/// A change of a key; one that was removed has no value.
#[derive(Deserialize)]
struct Record {
    key: String,
    #[serde(default)]
    value: Option<String>,
}

/// The same, to be written.
#[derive(Serialize)]
struct RecordRef<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
}

impl Journal {
    /// The journal in the file `path`, made if there is none, and the store's content according to it. No other process may
    /// change the directory.
    pub(super) fn open(path: &Path) -> io::Result<(Self, BTreeMap<String, Vec<u8>>)> {
        let mut file = private().create(true).truncate(false).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let mut keys = BTreeMap::new();
        for line in bytes.split(|&byte| byte == b'\n') {
            let records: Vec<Record> = match serde_json::from_slice(line) {
                Ok(Line::One(record)) => vec![record],
                Ok(Line::All(records)) => records,
                Err(_) => continue,
            };
            for Record { key, value } in records {
                match value {
                    Some(value) => drop(keys.insert(key, value.into_bytes())),
                    None => drop(keys.remove(&key)),
                }
            }
        }
        Ok((Self { path: path.to_owned(), file, len: 0, lines: 0, is_stale: true }, keys))
    }

    /// Records that keys have new values, or none. Where that fails the journal is as it was.
    pub(super) fn note(&mut self, changes: &[(&str, Option<&[u8]>)]) -> io::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let line = line(changes)?;
        if let Err(error) = self.file.write_all_at(&line, self.len) {
            // Half a line would spoil the next one.
            self.is_stale = self.file.set_len(self.len).is_err();
            return Err(error);
        }
        self.len += line.len() as u64;
        self.lines += 1;
        Ok(())
    }

    /// From now on all writes fail, or none, as on a disk that is full.
    #[cfg(test)]
    pub(super) fn fail(&mut self, full: bool) {
        let path = if full { Path::new("/dev/full") } else { &self.path };
        self.file = OpenOptions::new().read(true).write(true).open(path).expect("it can be opened");
    }

    /// A change that could not be recorded is in effect all the same.
    pub(super) fn has_missed(&mut self) {
        self.is_stale = true;
    }

    /// Whether the journal should be written anew: it differs from the store, or is much longer than the `keys` in it.
    pub(super) fn is_due(&self, keys: usize) -> bool {
        self.is_stale || self.lines > 2 * keys + SLACK
    }

    /// Writes the journal anew, with `keys` and nothing else. A router that is killed meanwhile leaves the old one.
    pub(super) fn rewrite<'a>(&mut self, keys: impl Iterator<Item = (&'a str, &'a [u8])>) -> io::Result<()> {
        let (mut bytes, mut lines) = (Vec::new(), 0);
        for (key, value) in keys {
            bytes.extend(line(&[(key, Some(value))])?);
            lines += 1;
        }
        self.is_stale = true;
        let new = self.path.with_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = private().create_new(true).open(&new)?;
        file.write_all(&bytes)?;
        fs::rename(&new, &self.path)?;
        (self.file, self.len, self.lines, self.is_stale) = (file, bytes.len() as u64, lines, false);
        Ok(())
    }
}

/// Addresses and names of all tenants are in it.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

fn line(changes: &[(&str, Option<&[u8]>)]) -> io::Result<Vec<u8>> {
    let mut records = Vec::with_capacity(changes.len());
    for (key, value) in changes {
        records.push(RecordRef { key, value: value.map(str::from_utf8).transpose().map_err(io::Error::other)? });
    }
    let single = if records.len() == 1 { records.pop() } else { None };
    let mut line = Vec::with_capacity(LINE);
    serde_json::to_writer(&mut line, &single.map_or(Line::All(records), Line::One))?;
    line.push(b'\n');
    Ok(line)
}

/// Bytes of a line in which an endpoint and its addresses fit.
const LINE: usize = 1024;
/// Lines that may be obsolete before the journal is written anew.
const SLACK: usize = 4096;
