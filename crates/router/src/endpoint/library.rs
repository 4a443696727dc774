//! Preload library: its installed file, and the router's copy for the endpoints.

use std::env;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The router's own copy of the preload library, which every endpoint gets a copy of: all endpoints of a router have the
/// same, even when the installed one is updated meanwhile.
#[derive(Clone, Debug)]
pub struct Library {
    copy: PathBuf,
    is_linked: bool,
}

/// Error of providing the library.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// It is in none of the usual places.
    #[error("the preload library is in none of {}: build it (`./dev build`) or install it there; {ENV} names another place for {NAME}", list(.0))]
    NotFound(Vec<PathBuf>),
    /// It cannot be copied.
    #[error("copying {} to {}: {source}", .from.display(), .to.display())]
    Copy {
        /// The source.
        from: PathBuf,
        /// The destination.
        to: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl Library {
    /// Path of the installed library: `$RDMESH_LIBRARY`, else beside the running program or in `../lib`.
    pub fn find() -> Result<PathBuf, LibraryError> {
        let named = env::var_os(ENV).map(PathBuf::from);
        let candidates = named.map_or_else(|| near(NAME), |path| vec![path]);
        candidates.iter().find(|path| path.is_file()).cloned().ok_or(LibraryError::NotFound(candidates))
    }

    /// Path of the installed library for sockets, which is found in the same places.
    pub fn find_sockets() -> Result<PathBuf, LibraryError> {
        let candidates = near(SOCKETS_NAME);
        candidates.iter().find(|path| path.is_file()).cloned().ok_or(LibraryError::NotFound(candidates))
    }

    /// Copies the library `from` into `directory`.
    pub fn install(from: &Path, directory: &Path) -> Result<Self, LibraryError> {
        let copy = directory.join(NAME);
        let failed = |source| LibraryError::Copy { from: from.to_owned(), to: copy.clone(), source };
        place(from, &copy).map_err(failed)?;
        Ok(Self { copy, is_linked: false })
    }

    /// The router's copy.
    pub fn path(&self) -> &Path {
        &self.copy
    }

    /// A copy at `path` that endpoints of one pool share, by links: a copy for each would take longer than all else, and memory.
    pub fn shared(&self, path: PathBuf) -> Result<Self, LibraryError> {
        let failed = |source| LibraryError::Copy { from: self.copy.clone(), to: path.clone(), source };
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| place(&self.copy, &path)).map_err(failed)?;
        Ok(Self { copy: path, is_linked: true })
    }

    /// Puts the library at `path`: a copy, unless it is shared. A link is not enough where endpoints do not trust each other: root
    /// in a container may write to what is mounted there, and would change the library of all.
    pub(super) fn copy_to(&self, path: &Path) -> io::Result<()> {
        if self.is_linked { fs::hard_link(&self.copy, path) } else { place(&self.copy, path) }
    }
}

/// Copies `from` to `to` under another name first, so that no program ever sees half of it, nor a changed mapping.
fn place(from: &Path, to: &Path) -> io::Result<()> {
    let temporary = to.with_extension("new");
    fs::copy(from, &temporary)?;
    fs::set_permissions(&temporary, Permissions::from_mode(0o755))?;
    fs::rename(&temporary, to)
}

/// Where a library of this name may be installed: beside the running program, and in folders beside that one's.
fn near(name: &str) -> Vec<PathBuf> {
    let exe = env::current_exe().ok();
    let Some(directory) = exe.as_deref().and_then(Path::parent) else { return Vec::new() };
    ["", "../lib", "../lib/rdmesh"].map(|folder| directory.join(folder).join(name)).to_vec()
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

const NAME: &str = rdmesh_uverbs::session::LIBRARY_NAME;
const SOCKETS_NAME: &str = "librdmesh-sockets.so";
const ENV: &str = "RDMESH_LIBRARY";
