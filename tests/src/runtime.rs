//! The OCI runtime as an engine's configuration names it: one file.

use crate::lab::Lab;
use crate::product;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Makes a file that runs `rdmesh-runtime` for the router of `lab`, with `runc` or another runtime behind it.
pub fn runtime_for(lab: &Lab, folder: &Path, runc: &str) -> PathBuf {
    let file = folder.join("rdmesh-runtime");
    let (state, runtime) = (lab.dir(), product("rdmesh-runtime"));
    let text = format!(
        "#!/bin/sh\nRDMESH_STATE=\"{}\" RDMESH_RUNC=\"{runc}\" exec \"{}\" \"$@\"\n",
        state.display(),
        runtime.display()
    );
    fs::write(&file, text).expect("the folder is ours");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("the folder is ours");
    file
}
