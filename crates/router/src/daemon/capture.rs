//! Captures of endpoints' packets, as pcap files.
//!
//! A capture is read piece by piece. One that has not been read for a while ends by itself: its client is gone.

use crate::worker::{Shard, ShardHandle};
use rdmesh_nic::{CaptureFilter, Captured};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The captures of a router.
#[derive(Default)]
pub struct Captures(Mutex<Table>);

#[derive(Default)]
struct Table {
    last: u32,
    open: BTreeMap<u32, Open>,
}

struct Open {
    /// The workers, each with the number of its capture.
    parts: Vec<(ShardHandle, u32)>,
    snap_len: usize,
    is_new: bool,
    read_at: Instant,
}

/// A copied packet and when it was copied, since 1970.
struct Record {
    at: Duration,
    captured: Captured,
}

impl Captures {
    /// Begins one on all `workers`; returns its number.
    pub fn start(&self, workers: &[ShardHandle], filter: &CaptureFilter) -> u32 {
        let part = |worker: &ShardHandle| {
            let filter = filter.clone();
            (worker.clone(), worker.call(move |shard| shard.engine().captures().start(filter)))
        };
        let parts = workers.iter().map(part).collect();
        let mut table = self.table();
        table.last += 1;
        let id = table.last;
        let open = Open { parts, snap_len: filter.snap_len, is_new: true, read_at: Instant::now() };
        table.open.insert(id, open);
        id
    }

    /// The packets copied since the last read, as a part of a pcap file; none where there is no such capture.
    pub fn read(&self, id: u32) -> Option<Vec<u8>> {
        let mut table = self.table();
        table.end_abandoned();
        let open = table.open.get_mut(&id)?;
        open.read_at = Instant::now();
        let mut file = if std::mem::take(&mut open.is_new) { file_header(open.snap_len) } else { Vec::new() };
        let mut records: Vec<_> = open.parts.iter().flat_map(|(worker, part)| taken(worker, *part)).collect();
        records.sort_by_key(|record| record.at);
        records.iter().for_each(|record| record.write(&mut file));
        Some(file)
    }

    /// Ends one. Returns how many packets were lost because they were not read in time.
    pub fn stop(&self, id: u32) -> Option<u64> {
        let mut table = self.table();
        table.end_abandoned();
        Some(table.open.remove(&id)?.end())
    }

    /// Ends captures that are not read any more. To be called now and then while there are captures; returns whether there are.
    pub fn end_abandoned(&self) -> bool {
        let mut table = self.table();
        table.end_abandoned();
        !table.open.is_empty()
    }

    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn end_abandoned(&mut self) {
        let abandoned = |open: &Open| open.read_at.elapsed() > READ_TIMEOUT;
        let gone: Vec<_> = self.open.iter().filter(|(_, open)| abandoned(open)).map(|(id, _)| *id).collect();
        for id in gone {
            if let Some(open) = self.open.remove(&id) {
                tracing::info!(capture = id, "capture ended: not read for ten seconds");
                open.end();
            }
        }
    }
}

impl Open {
    fn end(self) -> u64 {
        self.parts
            .into_iter()
            .map(|(worker, part)| worker.call(move |shard| shard.engine().captures().stop(part)))
            .sum()
    }
}

/// The copies that wait at one worker.
fn taken(worker: &ShardHandle, part: u32) -> Vec<Record> {
    worker.call(move |shard: &mut Shard| {
        let (now, wall) = (shard.now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        let mut records = Vec::new();
        while let Some(captured) = shard.engine().captures().poll(part) {
            let age = Duration::from_nanos(now.0.saturating_sub(captured.at.0));
            records.push(Record { at: wall.saturating_sub(age), captured });
        }
        records
    })
}

impl Record {
    fn write(&self, file: &mut Vec<u8>) {
        let numbers = [
            self.at.as_secs() as u32,
            self.at.subsec_nanos(),
            self.captured.bytes.len() as u32,
            self.captured.len as u32,
        ];
        numbers.iter().for_each(|number| file.extend_from_slice(&number.to_le_bytes()));
        file.extend_from_slice(&self.captured.bytes);
    }
}

/// The head of a pcap file with nanoseconds, whose packets begin with their IP header.
fn file_header(snap_len: usize) -> Vec<u8> {
    const NANOSECONDS: u32 = 0xa1b2_3c4d;
    const VERSION_2_4: u32 = 2 | 4 << 16;
    const LINKTYPE_RAW: u32 = 101;
    [NANOSECONDS, VERSION_2_4, 0, 0, snap_len as u32, LINKTYPE_RAW].iter().flat_map(|n| n.to_le_bytes()).collect()
}

/// Time after which an unread capture ends.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
