//! File of the embedded store: a redb database, which has all of a transaction or nothing, also after a crash of the machine.

use super::legacy;
use super::state::{Content, Held};
use crate::store::{LeaseId, Revision};
use redb::backends::FileBackend;
use redb::{Database, ReadableTable, TableDefinition, WriteTransaction};
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file of a store.
pub(super) struct Disk {
    path: PathBuf,
    /// None after a failure: then it is written anew.
    database: Option<Database>,
    #[cfg(test)]
    is_full: bool,
}

/// One change of the file.
#[derive(Default)]
pub(super) struct Write<'a> {
    /// New contents of keys, or none.
    pub(super) changes: &'a [(String, Option<Held>)],
    pub(super) granted: Option<(LeaseId, Duration)>,
    pub(super) ended: Option<LeaseId>,
}

impl Disk {
    /// The file `path`, made if there is none, and its contents. No other process may change the directory.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Content)> {
        let file = private().create(true).truncate(false).open(path)?;
        if let Some(keys) = legacy::read(&file)? {
            let mut disk = Self::closed(path);
            let content = Content { revision: Revision(1), keys, ..Content::default() };
            disk.rewrite(&content)?;
            return Ok((disk, content));
        }
        let database = database(file)?;
        let content = read(&database).map_err(io::Error::other)?;
        Ok((Self { database: Some(database), ..Self::closed(path) }, content))
    }

    fn closed(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            database: None,
            #[cfg(test)]
            is_full: false,
        }
    }

    /// Makes one change of `content`, which is what the store had before. Where that fails the file is as it was, or is written anew
    /// with the next change.
    pub(super) fn write(&mut self, write: &Write<'_>, content: &Content) -> io::Result<()> {
        #[cfg(test)]
        if self.is_full {
            self.database = None;
            return Err(ErrorKind::StorageFull.into());
        }
        if self.database.is_none() {
            self.rewrite(content)?;
        }
        let Some(database) = &self.database else { return Err(ErrorKind::NotFound.into()) };
        let written = change(database, |transaction| write.apply(transaction, content.revision));
        if written.is_err() {
            self.database = None;
        }
        written
    }

    /// Writes a new file with `content`. A router that is killed meanwhile leaves the old one.
    fn rewrite(&mut self, content: &Content) -> io::Result<()> {
        let new = self.path.with_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let database = database(private().create_new(true).open(&new)?)?;
        change(&database, |transaction| write_all(transaction, content))?;
        fs::rename(&new, &self.path)?;
        self.database = Some(database);
        Ok(())
    }

    /// From now on all writes fail, or none, as on a disk that is full.
    #[cfg(test)]
    pub(super) fn fail(&mut self, full: bool) {
        self.is_full = full;
    }
}

impl Write<'_> {
    fn apply(&self, transaction: &WriteTransaction, before: Revision) -> Result<(), redb::Error> {
        put(transaction, self.changes)?;
        let mut leases = transaction.open_table(LEASES)?;
        let mut numbers = transaction.open_table(NUMBERS)?;
        if !self.changes.is_empty() {
            numbers.insert(REVISION, before.0 + 1)?;
        }
        if let Some((id, ttl)) = self.granted {
            numbers.insert(LAST_LEASE, id.0)?;
            leases.insert(id.0, milliseconds(ttl))?;
        }
        if let Some(id) = self.ended {
            leases.remove(id.0)?;
        }
        Ok(())
    }
}

/// Addresses and names of all tenants are in it.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

fn database(file: File) -> io::Result<Database> {
    let mut builder = Database::builder();
    // The store itself has everything in memory.
    builder.set_cache_size(CACHE);
    let file = FileBackend::new(file).map_err(io::Error::other)?;
    builder.create_with_backend(file).map_err(io::Error::other)
}

fn change(database: &Database, make: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>) -> io::Result<()> {
    let make = || {
        let transaction = database.begin_write()?;
        make(&transaction)?;
        Ok::<(), redb::Error>(transaction.commit()?)
    };
    make().map_err(io::Error::other)
}

fn put(transaction: &WriteTransaction, changes: &[(String, Option<Held>)]) -> Result<(), redb::Error> {
    let mut keys = transaction.open_table(KEYS)?;
    for (key, held) in changes {
        match held {
            Some(held) => keys.insert(key.as_str(), row(held))?,
            None => keys.remove(key.as_str())?,
        };
    }
    Ok(())
}

fn write_all(transaction: &WriteTransaction, content: &Content) -> Result<(), redb::Error> {
    let mut keys = transaction.open_table(KEYS)?;
    for (key, held) in &content.keys {
        keys.insert(key.as_str(), row(held))?;
    }
    let mut leases = transaction.open_table(LEASES)?;
    for (id, ttl) in &content.leases {
        leases.insert(id.0, milliseconds(*ttl))?;
    }
    let mut numbers = transaction.open_table(NUMBERS)?;
    numbers.insert(REVISION, content.revision.0)?;
    numbers.insert(LAST_LEASE, content.last_lease)?;
    Ok(())
}

/// The contents of a database; an empty one has no tables yet.
fn read(database: &Database) -> Result<Content, redb::Error> {
    let transaction = database.begin_write()?;
    let mut content = Content::default();
    {
        let numbers = transaction.open_table(NUMBERS)?;
        let number = |name| Ok::<u64, redb::Error>(numbers.get(name)?.map_or(0, |number| number.value()));
        (content.revision, content.last_lease) = (Revision(number(REVISION)?), number(LAST_LEASE)?);
        for row in transaction.open_table(LEASES)?.iter()? {
            let (id, ttl) = row?;
            content.leases.insert(LeaseId(id.value()), Duration::from_millis(ttl.value()));
        }
        for row in transaction.open_table(KEYS)?.iter()? {
            let (key, held) = row?;
            let (revision, lease, value) = held.value();
            let held = Held { value: value.to_vec(), revision: Revision(revision), lease: lease.map(LeaseId) };
            content.keys.insert(key.value().to_owned(), held);
        }
    }
    transaction.commit()?;
    Ok(content)
}

fn row(held: &Held) -> (u64, Option<u64>, &[u8]) {
    (held.revision.0, held.lease.map(|id| id.0), held.value.as_slice())
}

fn milliseconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

/// Revision, lease and value of each key.
const KEYS: TableDefinition<'_, &str, (u64, Option<u64>, &[u8])> = TableDefinition::new("keys");
/// Milliseconds of each lease.
const LEASES: TableDefinition<'_, u64, u64> = TableDefinition::new("leases");
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
const REVISION: &str = "revision";
const LAST_LEASE: &str = "last lease";
const CACHE: usize = 1 << 20;
