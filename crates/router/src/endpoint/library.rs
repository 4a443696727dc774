//! Preload libraries: their installed files, and the router's copies for the endpoints.

use rdmesh_uverbs::session::{MPI_LIBRARY_NAME, SOCKETS_LIBRARY_NAME};
use std::env;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The router's own copies of the preload libraries, which every endpoint gets copies of: all endpoints of a router have the
/// same, even when the installed ones are updated meanwhile.
#[derive(Clone, Debug)]
pub struct Library {
    copy: PathBuf,
    /// Those of the libraries beside it that are installed too: for sockets, for MPI.
    others: Vec<PathBuf>,
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

    /// Path of the installed library for sockets or for MPI, which is found in the same places.
    pub fn find_other(name: &str) -> Result<PathBuf, LibraryError> {
        let candidates = near(name);
        candidates.iter().find(|path| path.is_file()).cloned().ok_or(LibraryError::NotFound(candidates))
    }

    /// Copies the library `from`, and the others that are beside it, into `directory`.
    pub fn install(from: &Path, directory: &Path) -> Result<Self, LibraryError> {
        let others = OTHERS.map(|name| from.with_file_name(name)).into_iter().filter(|path| path.is_file()).collect();
        let installed = Self { copy: from.to_owned(), others, is_linked: false };
        installed.placed_at(directory.join(NAME))
    }

    /// Copies of these, that of the verbs library at `path`.
    fn placed_at(&self, path: PathBuf) -> Result<Self, LibraryError> {
        let copied = |from: &Path, to: PathBuf| match place(from, &to) {
            Ok(()) => Ok(to),
            Err(source) => Err(LibraryError::Copy { from: from.to_owned(), to, source }),
        };
        let beside = |other: &PathBuf| copied(other, path.with_file_name(other.file_name().unwrap_or_default()));
        let others = self.others.iter().map(beside).collect::<Result<_, _>>()?;
        Ok(Self { copy: copied(&self.copy, path)?, others, is_linked: false })
    }

    /// The router's copy of the verbs library.
    pub fn path(&self) -> &Path {
        &self.copy
    }

    /// Copies that endpoints of one pool share, by links, that of the verbs library at `path`: copies for each would take longer
    /// than all else, and memory.
    pub fn shared(&self, path: PathBuf) -> Result<Self, LibraryError> {
        let directory = path.parent().map_or(Ok(()), fs::create_dir_all);
        directory.map_err(|source| LibraryError::Copy { from: self.copy.clone(), to: path.clone(), source })?;
        Ok(Self { is_linked: true, ..self.placed_at(path)? })
    }

    /// Puts the libraries into `directory`: copies, unless they are shared. A link is not enough where endpoints do not trust each
    /// other: root in a container may write to what is mounted there, and would change the library of all.
    pub(super) fn copy_to(&self, directory: &Path) -> io::Result<()> {
        [&self.copy].into_iter().chain(&self.others).try_for_each(|copy| {
            let to = directory.join(copy.file_name().unwrap_or_default());
            if self.is_linked { fs::hard_link(copy, to) } else { place(copy, &to) }
        })
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
/// Libraries that may be installed beside it.
const OTHERS: [&str; 2] = [SOCKETS_LIBRARY_NAME, MPI_LIBRARY_NAME];
const ENV: &str = "RDMESH_LIBRARY";
