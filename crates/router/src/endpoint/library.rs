//! Where the preload library comes from.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The router's own copy of the preload library, which every endpoint gets a link to: an update of the installed one
/// does not change it under running programs.
#[derive(Clone, Debug)]
pub struct Library {
    copy: PathBuf,
}

/// Why there is no library.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// It is in none of the usual places.
    #[error("the preload library {NAME} is in none of {}: build it (`cargo build`), install it there, or set {ENV} to where it is", list(.0))]
    NotFound(Vec<PathBuf>),
    /// It cannot be copied.
    #[error("copying {} to {}: {source}", .from.display(), .to.display())]
    Copy {
        /// Where it is.
        from: PathBuf,
        /// Where it was to go.
        to: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl Library {
    /// Where the library is installed: `$RDMESH_LIBRARY`, else beside the running program or in `../lib`.
    pub fn find() -> Result<PathBuf, LibraryError> {
        let candidates = match env::var_os(ENV) {
            Some(path) => vec![PathBuf::from(path)],
            None => env::current_exe().ok().and_then(|exe| exe.parent().map(near)).unwrap_or_default(),
        };
        candidates.iter().find(|path| path.is_file()).cloned().ok_or(LibraryError::NotFound(candidates))
    }

    /// Copies the installed library into `directory`.
    pub fn install(directory: &Path) -> Result<Self, LibraryError> {
        let from = Self::find()?;
        let copy = directory.join(NAME);
        let result = place(&copy, |temporary| fs::copy(&from, temporary).map(drop));
        result.map_err(|source| LibraryError::Copy { from, to: copy.clone(), source })?;
        Ok(Self { copy })
    }

    /// The library at `copy`.
    #[cfg(test)]
    pub(super) fn at(copy: PathBuf) -> Self {
        Self { copy }
    }

    /// The router's copy.
    pub fn path(&self) -> &Path {
        &self.copy
    }

    /// Puts the library at `path`: as a link, or as a copy where there can be none.
    pub(super) fn link_to(&self, path: &Path) -> io::Result<()> {
        place(path, |temporary| {
            fs::hard_link(&self.copy, temporary).or_else(|_| fs::copy(&self.copy, temporary).map(drop))
        })
    }
}

/// Makes `path` by `make` under another name first, so that nobody ever sees half of it, nor a changed mapping.
fn place(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let temporary = path.with_extension("new");
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => make(&temporary)?,
    }
    fs::rename(&temporary, path)
}

fn near(directory: &Path) -> Vec<PathBuf> {
    vec![directory.join(NAME), directory.join("../lib").join(NAME), directory.join("../lib/rdmesh").join(NAME)]
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

const NAME: &str = rdmesh_uverbs::session::LIBRARY_NAME;
const ENV: &str = "RDMESH_LIBRARY";
