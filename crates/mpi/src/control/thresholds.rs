//! Thresholds between copy and RDMA, and the places of ranks that they depend on.

use std::fmt;

/// Where a process runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Site {
    /// Boot of a machine: a guest's own in a guest.
    pub machine: u128,
    /// Network namespace of that machine: processes of one reach each other without RDMA.
    pub namespace: u64,
}

impl Site {
    /// Bytes of one in a frame.
    pub const LEN: usize = 24;

    /// This process's own.
    pub(crate) fn own() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
        let namespace = rustix::fs::stat("/proc/self/ns/net").map_or(0, |status| status.st_ino);
        Self { machine: u128::from_str_radix(&digits, 16).unwrap_or(0), namespace }
    }

    /// As it is in a frame.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.machine.to_le_bytes());
        bytes[16..].copy_from_slice(&self.namespace.to_le_bytes());
        bytes
    }

    /// The one at the beginning of a frame's body, and the rest.
    pub fn parse(body: &[u8]) -> Option<(Self, &[u8])> {
        let (machine, rest) = body.split_first_chunk()?;
        let (namespace, rest) = rest.split_first_chunk()?;
        Some((Self { machine: u128::from_le_bytes(*machine), namespace: u64::from_le_bytes(*namespace) }, rest))
    }
}

/// A rank that waits in `MPI_Init` for all others of its world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    /// Where it runs.
    pub site: Site,
    /// It was given its threshold.
    pub is_fixed: bool,
}

impl Ready {
    /// As it is in a frame.
    pub fn to_bytes(self) -> Vec<u8> {
        [&self.site.to_bytes()[..], &[self.is_fixed.into()]].concat()
    }

    /// The one in the body of a frame; none in that of a rank that does not wait.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let (site, &[is_fixed]) = Site::parse(body)? else { return None };
        Some(Self { site, is_fixed: is_fixed != 0 })
    }
}

/// Order of the launcher by which a rank leaves `MPI_Init`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Start {
    /// All ranks of its world have joined, and each is told so, or none.
    pub is_whole: bool,
    /// Thresholds that the ranks have measured; none where they measure nothing.
    pub thresholds: Option<Thresholds>,
}

impl Start {
    /// As it is in a frame.
    pub fn to_bytes(self) -> Vec<u8> {
        let thresholds = self.thresholds.map(Thresholds::to_bytes).unwrap_or_default();
        [&[self.is_whole.into()], &thresholds[..]].concat()
    }

    /// The one in the body of a frame.
    pub fn parse(body: &[u8]) -> Self {
        let Some((&is_whole, thresholds)) = body.split_first() else { return Self::default() };
        Self { is_whole: is_whole != 0, thresholds: Thresholds::parse(thresholds) }
    }
}

/// Lengths in bytes of the shortest messages that go by RDMA: those that are as short were measured to arrive earlier by MPI's own
/// way. [`u64::MAX`] where none does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// To another endpoint of the same machine.
    pub same_machine: u64,
    /// To another machine.
    pub other_machine: u64,
}

impl Thresholds {
    /// The same for all.
    pub const fn all(bytes: u64) -> Self {
        Self { same_machine: bytes, other_machine: bytes }
    }

    /// That for a peer.
    pub fn of(self, is_same_machine: bool) -> u64 {
        if is_same_machine { self.same_machine } else { self.other_machine }
    }

    /// Length in bytes below which a message goes by RDMA to nobody.
    pub fn lowest(self) -> u64 {
        self.same_machine.min(self.other_machine)
    }

    /// As they are in a frame.
    pub fn to_bytes(self) -> Vec<u8> {
        [self.same_machine, self.other_machine].into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Those in the body of a frame.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let (&[same_machine, other_machine], []) = body.as_chunks::<8>() else { return None };
        Some(Self { same_machine: u64::from_le_bytes(same_machine), other_machine: u64::from_le_bytes(other_machine) })
    }
}

/// Thresholds that a world has measured; none where no two of its ranks are so placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Measured {
    /// As in [`Thresholds`].
    pub same_machine: Option<u64>,
    /// As in [`Thresholds`].
    pub other_machine: Option<u64>,
}

impl Measured {
    /// As the ranks use them: no message is where nothing could be measured.
    pub fn thresholds(self) -> Thresholds {
        let [same_machine, other_machine] =
            [self.same_machine, self.other_machine].map(|bytes| bytes.unwrap_or(u64::MAX));
        Thresholds { same_machine, other_machine }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = [(self.same_machine, "on one machine"), (self.other_machine, "between machines")];
        let found = found.into_iter().filter_map(|(bytes, place)| Some((bytes?, place)));
        for (at, (bytes, place)) in found.enumerate() {
            f.write_str(if at == 0 { "measured at the start: " } else { ", " })?;
            match bytes {
                u64::MAX => write!(f, "RDMA is not faster {place}")?,
                bytes => write!(f, "RDMA is faster {place} from {bytes} bytes on")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_read_as_they_were_written() {
        let site = Site { machine: 7 << 100, namespace: 4_026_531_840 };
        assert_eq!(Site::parse(&[&site.to_bytes()[..], b"rest"].concat()), Some((site, &b"rest"[..])));
        assert_eq!(Site::parse(&[0; Site::LEN - 1]), None);
        let thresholds = Thresholds { same_machine: 16384, other_machine: u64::MAX };
        assert_eq!(Thresholds::parse(&thresholds.to_bytes()), Some(thresholds));
        assert_eq!(Thresholds::parse(&[]), None);
        let ready = Ready { site, is_fixed: true };
        assert_eq!((Ready::parse(&ready.to_bytes()), Ready::parse(&[])), (Some(ready), None));
        for thresholds in [None, Some(thresholds)] {
            let start = Start { is_whole: true, thresholds };
            assert_eq!(Start::parse(&start.to_bytes()), start);
        }
        assert_eq!(Start::parse(&[]), Start::default());
    }

    #[test]
    fn the_report_says_what_was_measured() {
        let one = Measured { same_machine: Some(16384), other_machine: None };
        assert_eq!(one.to_string(), "measured at the start: RDMA is faster on one machine from 16384 bytes on");
        assert_eq!(one.thresholds(), Thresholds { same_machine: 16384, other_machine: u64::MAX });
        let both = Measured { other_machine: Some(u64::MAX), ..one };
        assert_eq!(both.to_string(), format!("{one}, RDMA is not faster between machines"));
    }
}
