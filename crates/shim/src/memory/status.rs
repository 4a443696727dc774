//! Fields of `/proc/self/status`.

use rustix::fs::{CWD, Mode, OFlags};

/// A field of `/proc/self/status` that is in kB, in bytes; 0 where there is none.
pub(super) fn bytes(name: &str) -> u64 {
    find(&whole("/proc/self/status").unwrap_or_default(), name)
}

/// The whole of a file that the kernel makes.
pub(super) fn whole(path: &str) -> Option<String> {
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let (mut text, mut part) = (Vec::new(), [0u8; 4096]);
    loop {
        match rustix::io::read(&file, &mut part).ok()? {
            0 => return String::from_utf8(text).ok(),
            len => text.extend_from_slice(&part[..len]),
        }
    }
}

fn find(text: &str, name: &str) -> u64 {
    let field = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes = field.and_then(|field| field.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kilobytes.map_or(0, |kilobytes| kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "Name:\tVmPin: 7 kB\nVmPinned:\t 3 kB\nVmPin:\t      12 kB\nVmHWM:\t 9 kB\n";
        assert_eq!((find(text, "VmPin"), find(text, "VmHWM"), find(text, "VmLck")), (12 << 10, 9 << 10, 0));
        assert_ne!(bytes("VmRSS"), 0);
    }
}
