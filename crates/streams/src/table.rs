//! File of the table in which accelerated processes of one user and one network namespace find each other.

use std::io;
use std::path::{Path, PathBuf};

/// Path of the table of user `user` for the network namespace with inode number `namespace`.
pub fn path(user: u32, namespace: u64) -> PathBuf {
    Path::new(FOLDER).join(format!("{PREFIX}{user}.{namespace}"))
}

/// Removes the tables of all users for a network namespace that has ended. Its number may come again.
pub fn remove_all(namespace: u64) -> io::Result<()> {
    let suffix = format!(".{namespace}");
    for entry in if_there(std::fs::read_dir(FOLDER))?.into_iter().flatten() {
        let entry = entry?;
        let name = entry.file_name();
        let user = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(&suffix));
        if user.is_some_and(|user| user.parse::<u32>().is_ok()) {
            if_there(std::fs::remove_file(entry.path()))?;
        }
    }
    Ok(())
}

fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

const FOLDER: &str = "/dev/shm";
const PREFIX: &str = "rdmesh-sockets.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_a_namespace_go_and_others_stay() {
        // No namespace has such numbers.
        let (ended, other) = (u64::from(std::process::id()) << 32, (u64::from(std::process::id()) << 32) + 1);
        let (gone, stays) = ([path(0, ended), path(1000, ended)], [path(0, other), path(1000, other)]);
        let foreign = Path::new(FOLDER).join(format!("{PREFIX}mine.{ended}"));
        let all: Vec<_> = gone.iter().chain(&stays).chain([&foreign]).collect();
        all.iter().for_each(|path| std::fs::write(path, "").expect("a folder for shared memory"));
        remove_all(ended).expect("permission");
        let left: Vec<bool> = all.iter().map(|path| path.exists()).collect();
        all.iter().for_each(|path| drop(std::fs::remove_file(path)));
        assert_eq!(left, [false, false, true, true, true]);
    }
}
