//! Tests of a state directory's ownership and locks.

use super::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_relative_directory_becomes_absolute_and_links_on_the_way_are_followed() {
    let located = |path: &str| StateDir::locate(Some(path.into()), 1).unwrap().0;
    let here = env::current_dir().unwrap().canonicalize().unwrap();
    assert_eq!(located("state"), here.join("state"));
    assert_eq!(located("."), here);
    assert_eq!(located("src/.."), here);
    assert_eq!(located("missing/state"), here.join("missing/state"));
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("target")).unwrap();
    symlink("target", temp.path().join("link")).unwrap();
    let through = StateDir::locate(Some(temp.path().join("link/state")), 1).unwrap();
    assert_eq!(through.0, temp.path().canonicalize().unwrap().join("target/state"));
}

#[test]
fn a_directory_whose_sockets_would_have_no_address_is_refused() {
    let longest = "/x".to_owned() + &"y".repeat(SOCKET_ADDRESS_LEN - "/api.sock".len() - 2);
    let located = |path: &str| StateDir::locate(Some(path.into()), 1);
    let socket = located(&longest).unwrap().api_socket();
    assert_eq!(socket.as_os_str().len(), SOCKET_ADDRESS_LEN);
    assert!(matches!(located(&(longest + "z")), Err(StateError::TooLong { longest: 98, .. })));
}

#[test]
fn a_runtime_directory_is_used_only_if_it_is_the_users_alone() {
    let temp = tempfile::tempdir().unwrap();
    let own = rustix::process::geteuid().as_raw();
    let set = |mode| fs::set_permissions(temp.path(), Permissions::from_mode(mode)).unwrap();
    set(0o700);
    assert!(is_runtime_dir_of(temp.path(), own));
    assert!(!is_runtime_dir_of(temp.path(), own + 1));
    set(0o750);
    assert!(!is_runtime_dir_of(temp.path(), own));
    assert!(!is_runtime_dir_of(Path::new("relative"), own) && !is_runtime_dir_of(Path::new("/nonexistent"), own));
}

#[test]
fn files_are_ones_own_and_closed_to_others() {
    let temp = tempfile::tempdir().unwrap();
    let state = StateDir::new(temp.path().join("state"));
    let directory = state.make(0o700).unwrap();
    assert_eq!(mode(state.path()), 0o700);
    state.open_file(&directory, LOG, 0o600).unwrap();
    assert_eq!(mode(&state.log()), 0o600);
    // One that an earlier release left open to all.
    fs::set_permissions(state.log(), Permissions::from_mode(0o644)).unwrap();
    state.open_file(&directory, LOG, 0o600).unwrap();
    assert_eq!(mode(&state.log()), 0o600);
}

#[test]
fn what_is_no_file_of_ones_own_is_not_opened() {
    let temp = tempfile::tempdir().unwrap();
    let state = StateDir::new(temp.path().join("state"));
    let directory = state.make(0o700).unwrap();
    let precious = temp.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    symlink(&precious, state.log()).unwrap();
    let open = || state.open_file(&directory, LOG, 0o600);
    assert!(matches!(open(), Err(StateError::NoFile(_))));
    fs::remove_file(state.log()).unwrap();
    fs::hard_link(&precious, state.log()).unwrap();
    assert!(matches!(open(), Err(StateError::NoFile(_))));
    fs::remove_file(state.log()).unwrap();
    rustix::fs::mknodat(CWD, state.log(), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    assert!(matches!(open(), Err(StateError::NoFile(_))));
    fs::remove_file(state.log()).unwrap();
    fs::create_dir(state.log()).unwrap();
    assert!(matches!(open(), Err(StateError::NoFile(_))));
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
}

#[test]
fn a_link_in_the_directorys_place_is_not_followed() {
    let temp = tempfile::tempdir().unwrap();
    let state = StateDir::new(temp.path().join("state"));
    symlink(temp.path().join("nowhere"), state.path()).unwrap();
    assert!(matches!(state.make(0o700), Err(StateError::Link(_))));
    assert!(!temp.path().join("nowhere").exists());
}
