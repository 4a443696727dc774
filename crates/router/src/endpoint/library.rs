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
}

/// Error of providing the library.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// It is in none of the usual places.
    #[error("the preload library {NAME} is in none of {}: build it (`cargo build`), install it there, or set {ENV} to where it is", list(.0))]
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
        let candidates = match env::var_os(ENV) {
            Some(path) => vec![PathBuf::from(path)],
            None => env::current_exe().ok().and_then(|exe| exe.parent().map(near)).unwrap_or_default(),
        };
        candidates.iter().find(|path| path.is_file()).cloned().ok_or(LibraryError::NotFound(candidates))
    }

    /// Copies the library `from` into `directory`.
    pub fn install(from: &Path, directory: &Path) -> Result<Self, LibraryError> {
        let copy = directory.join(NAME);
        let failed = |source| LibraryError::Copy { from: from.to_owned(), to: copy.clone(), source };
        place(from, &copy).map_err(failed)?;
        Ok(Self { copy })
    }

    /// The router's copy.
    pub fn path(&self) -> &Path {
        &self.copy
    }

    /// Puts a copy of the library at `path`. Not a link: root in a container may write to what is mounted there, and would
    /// change the library of all endpoints.
    pub(super) fn copy_to(&self, path: &Path) -> io::Result<()> {
        place(&self.copy, path)
    }
}

/// Copies `from` to `to` under another name first, so that no program ever sees half of it, nor a changed mapping.
fn place(from: &Path, to: &Path) -> io::Result<()> {
    let temporary = to.with_extension("new");
    fs::copy(from, &temporary)?;
    fs::set_permissions(&temporary, Permissions::from_mode(0o755))?;
    fs::rename(&temporary, to)
}

fn near(directory: &Path) -> Vec<PathBuf> {
    vec![directory.join(NAME), directory.join("../lib").join(NAME), directory.join("../lib/rdmesh").join(NAME)]
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

const NAME: &str = rdmesh_uverbs::session::LIBRARY_NAME;
const ENV: &str = "RDMESH_LIBRARY";
