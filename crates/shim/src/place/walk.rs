//! Path resolution, component by component, as the kernel does it.
//!
//! Needed because the tree for `/sys` lies elsewhere: `..` and links lead from it into the real file system and back.

use rustix::io::Errno;

/// Treatment of a link that is the last component of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// Follow it.
    Follow,
    /// The link itself is meant.
    Keep,
}

/// Kind of a component.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// A link, and where it leads.
    Link(Vec<u8>),
    Directory,
    /// Anything else.
    Leaf,
}

/// Target of a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Walked {
    /// The components that were resolved, without a leading slash: no links, no dots.
    pub(crate) at: Vec<u8>,
    /// The rest after a component that is missing or is not a directory: an error, which the kernel reports.
    pub(crate) tail: Vec<u8>,
    /// Whether it must be a directory, because of a trailing slash.
    pub(crate) directory: bool,
    /// Whether the way led through a place that `is_ours` knows.
    pub(crate) entered: bool,
}

/// Resolves `path`, which is absolute. `look` returns the node at a path without a leading slash.
pub(crate) fn walk(
    path: &[u8],
    last: Last,
    is_ours: impl Fn(&[u8]) -> bool,
    look: impl Fn(&[u8]) -> Result<Node, Errno>,
) -> Result<Walked, Errno> {
    let mut found = Walked { at: Vec::new(), tail: Vec::new(), directory: false, entered: false };
    let mut rest = path.to_vec();
    let mut links = 0;
    loop {
        let (component, after) = first(&rest);
        if component.is_empty() {
            return Ok(found);
        }
        let is_last = after.iter().all(|&byte| byte == b'/');
        found.directory = is_last && !after.is_empty() || component == b"." || component == b"..";
        if component == b"." || component == b".." {
            if component == b".." {
                pop(&mut found.at);
            }
            rest = after.to_vec();
            continue;
        }
        push(&mut found.at, component);
        found.entered |= is_ours(&found.at);
        if is_last && !found.directory && last == Last::Keep {
            return Ok(found);
        }
        match look(&found.at) {
            Ok(Node::Link(target)) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP);
                }
                pop(&mut found.at);
                if target.starts_with(b"/") {
                    found.at.clear();
                }
                rest = [&target[..], after].concat();
            }
            Ok(Node::Leaf) if !after.is_empty() => return Ok(Walked { tail: after.to_vec(), ..found }),
            Ok(Node::Leaf | Node::Directory) => rest = after.to_vec(),
            Err(_) => return Ok(Walked { tail: after.to_vec(), ..found }),
        }
    }
}

/// The first component, and what is behind it, from the slash on.
fn first(path: &[u8]) -> (&[u8], &[u8]) {
    let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    let path = &path[start..];
    path.split_at(path.iter().position(|&byte| byte == b'/').unwrap_or(path.len()))
}

fn push(at: &mut Vec<u8>, component: &[u8]) {
    if !at.is_empty() {
        at.push(b'/');
    }
    at.extend_from_slice(component);
}

fn pop(at: &mut Vec<u8>) {
    at.truncate(at.iter().rposition(|&byte| byte == b'/').unwrap_or(0));
}

/// As many as the kernel follows (`MAXSYMLINKS`).
const MAX_LINKS: u32 = 40;

#[cfg(test)]
mod tests {
    use super::*;

    /// The nodes of a small tree: paths that are not named in it are directories.
    fn look(at: &[u8]) -> Result<Node, Errno> {
        match at {
            b"sys/class/infiniband/rxe0" => Ok(Node::Link(b"../../devices/virtual/infiniband/rxe0".to_vec())),
            b"link" => Ok(Node::Link(b"/sys/class".to_vec())),
            b"loop" => Ok(Node::Link(b"loop".to_vec())),
            _ if at.ends_with(b"file") => Ok(Node::Leaf),
            _ if at.ends_with(b"missing") => Err(Errno::NOENT),
            _ => Ok(Node::Directory),
        }
    }

    fn walked(path: &str, last: Last) -> (String, String, bool) {
        let found = walk(path.as_bytes(), last, |at| at.starts_with(b"sys/class/infiniband"), look).unwrap();
        (String::from_utf8(found.at).unwrap(), String::from_utf8(found.tail).unwrap(), found.entered)
    }

    fn at(path: &str) -> String {
        walked(path, Last::Follow).0
    }

    #[test]
    fn dots_lead_from_where_a_link_has_led() {
        assert_eq!(at("/sys/class/infiniband/rxe0/../.."), "sys/devices/virtual");
        assert_eq!(at("/sys/./class//infiniband/rxe0/ports/1/"), "sys/devices/virtual/infiniband/rxe0/ports/1");
        assert_eq!(at("/link/infiniband/rxe0/../../net"), "sys/devices/virtual/net");
        assert_eq!(at("/../../sys"), "sys");
        assert!(walked("/link/infiniband/..", Last::Follow).2 && !walked("/link/net", Last::Follow).2);
    }

    #[test]
    fn a_link_in_the_last_place_is_kept_unless_a_slash_follows() {
        assert_eq!(walked("/sys/class/infiniband/rxe0", Last::Keep).0, "sys/class/infiniband/rxe0");
        assert_eq!(walked("/sys/class/infiniband/rxe0/", Last::Keep).0, "sys/devices/virtual/infiniband/rxe0");
    }

    #[test]
    fn what_leads_no_further_is_left_to_the_kernel() {
        assert_eq!(walked("/sys/missing/../x", Last::Follow), ("sys/missing".into(), "/../x".into(), false));
        assert_eq!(walked("/sys/file/.", Last::Follow), ("sys/file".into(), "/.".into(), false));
        assert_eq!(walked("/sys/file/", Last::Follow).1, "/");
        assert_eq!(walk(b"/loop", Last::Follow, |_| false, look), Err(Errno::LOOP));
    }
}
