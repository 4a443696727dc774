//! Journal that routers kept before the store had a database: one line of JSON for each change, or for those of one transaction.
//!
//! It is read once, where the router that has died is of such a version.

use super::state::Held;
use crate::store::Revision;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};

/// A line: changes that were made at once.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    One(Record),
    All(Vec<Record>),
}

/// A change of a key; one that was removed has no value.
#[derive(Deserialize)]
struct Record {
    key: String,
    #[serde(default)]
    value: Option<String>,
}

/// The keys of a journal; none where the file is not one. The last line of a router that was killed may be incomplete, and
/// does not count.
pub(super) fn read(mut file: &File) -> io::Result<Option<BTreeMap<String, Held>>> {
    let mut first = [0];
    // A database begins with other bytes.
    if file.read(&mut first)? == 0 || !b"{[".contains(&first[0]) {
        return Ok(None);
    }
    let mut bytes = first.to_vec();
    file.read_to_end(&mut bytes)?;
    let mut keys = BTreeMap::new();
    for line in bytes.split(|&byte| byte == b'\n') {
        let records = match serde_json::from_slice(line) {
            Ok(Line::One(record)) => vec![record],
            Ok(Line::All(records)) => records,
            Err(_) => continue,
        };
        for Record { key, value } in records {
            match value {
                Some(value) => keys.insert(key, Held { value: value.into_bytes(), revision: Revision(1), lease: None }),
                None => keys.remove(&key),
            };
        }
    }
    Ok(Some(keys))
}
