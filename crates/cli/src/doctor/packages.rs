//! Checks of the distribution's rdma-core packages.

use super::Finding;
use std::fs;
use std::path::{Path, PathBuf};

pub(super) fn check() -> Vec<Finding> {
    let packages = Packages::of(&fs::read_to_string("/etc/os-release").unwrap_or_default());
    let directories = library_directories();
    let library = match find(&directories, "libibverbs.so.1") {
        Some(path) => Finding::ok("rdma-core", path.display().to_string()),
        None => Finding::fail("rdma-core", "libibverbs.so.1 is not installed", packages.install(packages.provider)),
    };
    let provider_directories: Vec<PathBuf> = directories.iter().map(|d| d.join("libibverbs")).collect();
    let module = find(&provider_directories, "librxe-rdmav");
    let driver = Path::new("/etc/libibverbs.d/rxe.driver");
    let provider = match module {
        Some(path) if driver.exists() => Finding::ok("rxe provider", path.display().to_string()),
        Some(_) => Finding::fail(
            "rxe provider",
            format!("{} is missing, so libibverbs does not load the provider", driver.display()),
            packages.install(packages.provider),
        ),
        None => {
            let message = "librxe-rdmav*.so is not installed; libibverbs drives the device with it";
            Finding::fail("rxe provider", message, packages.install(packages.provider))
        }
    };
    let connections = match find(&directories, "librdmacm.so.1") {
        Some(path) => Finding::ok("rdma_cm", path.display().to_string()),
        None => Finding::warn(
            "rdma_cm",
            "librdmacm.so.1 is not installed; programs that connect by address and port need it",
            packages.install(packages.connections),
        ),
    };
    vec![library, provider, connections]
}

/// Names of the packages of a distribution.
pub(super) struct Packages {
    manager: &'static str,
    /// Has libibverbs and the rxe provider.
    pub(super) provider: &'static str,
    /// Has librdmacm.
    connections: &'static str,
    /// Has `ibv_devinfo`.
    pub(super) utilities: &'static str,
}

impl Packages {
    /// Those of the distribution that this machine has.
    pub(super) fn here() -> Self {
        Self::of(&fs::read_to_string("/etc/os-release").unwrap_or_default())
    }

    /// Those of the distribution that an `os-release` file names.
    fn of(os_release: &str) -> Self {
        let value = |key: &str| {
            let line = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_default().trim_matches('"').to_owned()
        };
        let ids = format!("{} {}", value("ID"), value("ID_LIKE"));
        let is = |id| ids.split_whitespace().any(|word| word == id);
        let (manager, provider, connections, utilities) = if is("fedora") || is("rhel") || is("centos") {
            ("dnf install", "libibverbs", "librdmacm", "libibverbs-utils")
        } else if ids.contains("suse") {
            ("zypper install", "libibverbs", "librdmacm1", "libibverbs-utils")
        } else if is("arch") {
            ("pacman -S", "rdma-core", "rdma-core", "rdma-core")
        } else {
            ("apt install", "ibverbs-providers", "librdmacm1", "ibverbs-utils")
        };
        Self { manager, provider, connections, utilities }
    }

    /// The command that installs `package`.
    pub(super) fn install(&self, package: &str) -> String {
        format!("{} {package}", self.manager)
    }
}

/// Library directories, approximately those of the dynamic loader: the usual ones and their subdirectories for architectures.
fn library_directories() -> Vec<PathBuf> {
    let roots = ["/usr/lib64", "/usr/lib", "/lib64", "/lib", "/usr/local/lib"].map(PathBuf::from);
    let nested = roots.iter().flat_map(|root| fs::read_dir(root).into_iter().flatten().flatten());
    let nested: Vec<PathBuf> =
        nested.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with("-linux-gnu")).collect();
    roots.into_iter().chain(nested).collect()
}

/// The first file in `directories` whose name begins with `prefix`.
fn find(directories: &[PathBuf], prefix: &str) -> Option<PathBuf> {
    let entries = directories.iter().flat_map(|directory| fs::read_dir(directory).into_iter().flatten().flatten());
    entries
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_have_the_distributions_names() {
        let provider = |os_release| {
            let packages = Packages::of(os_release);
            packages.install(packages.provider)
        };
        assert_eq!(provider("NAME=x\nID=debian\n"), "apt install ibverbs-providers");
        assert_eq!(provider("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"), "dnf install libibverbs");
        assert_eq!(provider("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n"), "zypper install libibverbs");
        assert_eq!(provider("ID=arch\n"), "pacman -S rdma-core");
    }
}
