//! The CNI plugin on the node: its program where the container runtime looks for it, and its place behind the plugin of the cluster's
//! network.
//!
//! The plugin of a cluster's network comes to a node by a DaemonSet of its own, at any time, and writes its list anew when it is
//! updated. So both are looked after for as long as the device plugin runs.

use crate::options::Options;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{info, warn};

/// The plugin's places on a node.
#[derive(Clone, Debug)]
pub(crate) struct Cni {
    /// Directory of the runtime's plugins.
    programs: PathBuf,
    /// Directory of the networks' lists of plugins, if it is to be in the first of them.
    lists: Option<PathBuf>,
    /// Directory of the kubelet, for its configuration.
    kubelet: PathBuf,
    /// State directory of the router, where it is not root's.
    state: Option<PathBuf>,
}

/// Error of [`Cni`].
#[derive(Debug, thiserror::Error)]
enum CniError {
    #[error("{}: {source}", .file.display())]
    File { file: PathBuf, source: io::Error },
    #[error("{}: it is no list of plugins: {why}", .file.display())]
    List { file: PathBuf, why: String },
}

impl Cni {
    /// The places that the command line names, if it does.
    pub(crate) fn of(options: &Options) -> Option<Self> {
        let (programs, lists) = (options.cni_bin.clone()?, options.cni_conf.clone());
        Some(Self { programs, lists, kubelet: options.kubelet_dir.clone(), state: options.state_dir.clone() })
    }

    /// Looks after the plugin, for ever.
    pub(crate) async fn run(self) {
        let (mut told, mut is_first) = (String::new(), true);
        loop {
            let cni = self.clone();
            let looked = spawn_blocking(move || cni.look(&own_program()?, is_first)).await.expect("no panic");
            is_first &= looked.is_err();
            match looked {
                Ok(changed) => {
                    changed.iter().for_each(|file| info!(file = %file.display(), "written"));
                    told.clear();
                }
                Err(error) => {
                    let error = error.to_string();
                    if told != error {
                        warn!("pods have no interface on networks of rdmesh: {error}");
                    }
                    told = error;
                }
            }
            sleep(INTERVAL).await;
        }
    }

    /// Installs `program`, and puts it into the list. Returns the files that were written. The program that is there is read once: a
    /// later look sees from its length whether it has been removed or replaced.
    fn look(&self, program: &Path, is_first: bool) -> Result<Vec<PathBuf>, CniError> {
        let installed = self.programs.join(NAME);
        let is_new =
            if is_first { !has_same(program, &installed, fs::read)? } else { !has_same(program, &installed, len)? };
        if is_new {
            replace(&installed, &fs::read(program).map_err(at(program))?, 0o755)?;
        }
        let listed = self.lists.as_deref().map(|lists| self.list(lists)).transpose()?.flatten();
        Ok(is_new.then_some(installed).into_iter().chain(listed).collect())
    }

    /// Puts the plugin behind the others of the network that the runtime takes, if there is one by now. Returns its file if it was
    /// changed.
    fn list(&self, lists: &Path) -> Result<Option<PathBuf>, CniError> {
        let Some(file) = first_network(lists).map_err(at(lists))? else { return Ok(None) };
        let wrong = |why: String| CniError::List { file: file.clone(), why };
        let text = fs::read(&file).map_err(at(&file))?;
        let mut list: Value = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        let plugins = list.get_mut("plugins").and_then(Value::as_array_mut);
        let plugins = plugins.ok_or_else(|| wrong("there is no `plugins` in it".to_owned()))?;
        if plugins.iter().any(|plugin| plugin["type"] == NAME) {
            return Ok(None);
        }
        let mut plugin = json!({ "type": NAME, "kubeletDir": self.kubelet });
        if let Some(state) = &self.state {
            plugin["stateDir"] = json!(state);
        }
        plugins.push(plugin);
        let text = serde_json::to_vec_pretty(&list).map_err(|error| wrong(error.to_string()))?;
        let mode = fs::metadata(&file).map_err(at(&file))?.permissions().mode();
        replace(&file, &text, mode)?;
        Ok(Some(file))
    }
}

/// Whether `property` of the files is the same; not so where the second one is not there.
fn has_same<T: PartialEq>(
    program: &Path,
    installed: &Path,
    property: impl Fn(PathBuf) -> io::Result<T>,
) -> Result<bool, CniError> {
    let wanted = property(program.to_owned()).map_err(at(program))?;
    Ok(property(installed.to_owned()).is_ok_and(|present| present == wanted))
}

fn len(file: PathBuf) -> io::Result<u64> {
    Ok(fs::metadata(file)?.len())
}

/// `rdmesh-cni`, beside this program.
fn own_program() -> Result<PathBuf, CniError> {
    let own = std::env::current_exe().map_err(at(Path::new("/proc/self/exe")))?;
    Ok(own.with_file_name(NAME))
}

/// The file that a runtime takes for the pods' network: the first by name (`libcni.ConfFiles`).
fn first_network(lists: &Path) -> io::Result<Option<PathBuf>> {
    let files = match fs::read_dir(lists) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        files => files?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?,
    };
    let is_network = |file: &PathBuf| file.extension().and_then(OsStr::to_str).is_some_and(|e| EXTENSIONS.contains(&e));
    Ok(files.into_iter().filter(is_network).min())
}

/// Replaces a file as a whole: a runtime may read it at any time.
fn replace(file: &Path, content: &[u8], mode: u32) -> Result<(), CniError> {
    // No runtime takes a file with this ending for a network.
    let new = file.with_file_name(format!(".{NAME}.new"));
    let write = || {
        let mut written = fs::File::create(&new)?;
        written.write_all(content)?;
        written.set_permissions(Permissions::from_mode(mode))?;
        written.sync_all()?;
        fs::rename(&new, file)
    };
    write().map_err(at(file))
}

fn at(file: &Path) -> impl FnOnce(io::Error) -> CniError {
    move |source| CniError::File { file: file.to_owned(), source }
}

const NAME: &str = "rdmesh-cni";
const EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];
/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const FLANNEL: &str = r#"{ "cniVersion": "1.0.0", "name": "cbr0", "plugins": [ { "type": "flannel", "delegate": { "isDefaultGateway": true } } ] }"#;

    struct Node {
        cni: Cni,
        program: PathBuf,
        folder: TempDir,
    }

    impl Node {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            fs::create_dir(path("bin")).unwrap();
            fs::write(path("program"), "first").unwrap();
            let cni = Cni {
                programs: path("bin"),
                lists: Some(path("net.d")),
                kubelet: "/var/lib/kubelet".into(),
                state: None,
            };
            Self { cni, program: path("program"), folder }
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let lists = self.folder.path().join("net.d");
            fs::create_dir_all(&lists).unwrap();
            fs::write(lists.join(name), text).unwrap();
            lists.join(name)
        }

        fn look(&self) -> Result<Vec<PathBuf>, CniError> {
            self.cni.look(&self.program, false)
        }
    }

    #[test]
    fn the_program_is_installed_and_replaced_by_another_version() {
        let node = Node::new();
        let installed = node.cni.programs.join(NAME);
        for content in ["first", "other"] {
            fs::write(&node.program, content).unwrap();
            assert_eq!(node.cni.look(&node.program, true).unwrap(), std::slice::from_ref(&installed));
            assert_eq!(fs::read_to_string(&installed).unwrap(), content);
            assert_eq!(fs::metadata(&installed).unwrap().permissions().mode() & 0o777, 0o755);
            assert!(node.look().unwrap().is_empty(), "nothing has changed");
        }
        fs::remove_file(&installed).unwrap();
        assert_eq!(node.look().unwrap(), [installed]);
    }

    #[test]
    fn it_stands_once_behind_the_clusters_plugins_also_when_their_list_is_written_anew() {
        let node = Node::new();
        node.look().unwrap();
        let later = node.write("20-other.conflist", FLANNEL);
        node.write("00-readme.txt", "no network");
        let list = node.write("10-flannel.conflist", FLANNEL);
        fs::set_permissions(&list, Permissions::from_mode(0o600)).unwrap();
        for _ in 0..2 {
            assert_eq!(node.look().unwrap(), std::slice::from_ref(&list));
            let mut expected: Value = serde_json::from_str(FLANNEL).unwrap();
            let own = json!({ "type": "rdmesh-cni", "kubeletDir": "/var/lib/kubelet" });
            expected["plugins"].as_array_mut().unwrap().push(own);
            assert_eq!(serde_json::from_slice::<Value>(&fs::read(&list).unwrap()).unwrap(), expected);
            assert_eq!(fs::metadata(&list).unwrap().permissions().mode() & 0o777, 0o600);
            assert!(node.look().unwrap().is_empty());
            node.write("10-flannel.conflist", FLANNEL);
        }
        assert_eq!(fs::read_to_string(later).unwrap(), FLANNEL, "no runtime takes it");
        assert_eq!(fs::read_dir(list.parent().unwrap()).unwrap().count(), 3, "nothing is left behind");
    }

    #[test]
    fn what_is_no_list_stays_and_is_named() {
        let node = Node::new();
        node.look().unwrap();
        for text in [r#"{ "type": "bridge" }"#, "{", ""] {
            let file = node.write("05-bridge.conf", text);
            let error = node.look().unwrap_err().to_string();
            assert!(error.contains("05-bridge.conf: it is no list of plugins"), "{error}");
            assert_eq!(fs::read_to_string(file).unwrap(), text);
        }
    }
}
