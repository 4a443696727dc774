//! Programs that cannot load the preload library: statically linked ones have no dynamic loader, and the loader of set-user-ID
//! ones ignores `LD_PRELOAD`.

use crate::elf::{Elf, Kind};
use rustix::fs::{StatVfsMountFlags, getxattr, statvfs};
use rustix::process::{getegid, geteuid};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Reason why a program cannot load the library.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// It has no loader.
    Static,
    /// It is for processors or a word size that the library is not for.
    Foreign,
    /// It is linked with musl, and the library was built in a way that only glibc loads.
    Libc,
    /// It runs as another user or group than its caller.
    SetId,
    /// It has capabilities that its caller does not have.
    Capabilities,
}

impl Obstacle {
    /// A line for the user. `program` is the file that cannot load the library, `effect` what follows from that.
    pub(crate) fn warning(&self, program: &Path, effect: &str) -> String {
        let why = match self {
            Self::Static => "is statically linked: use a build that is linked dynamically (in Go: CGO_ENABLED=1)",
            Self::Foreign => "is for another kind of processor, or has 32 bits: use a build for this machine",
            Self::Libc => {
                "is linked with musl, and the library that is preloaded loads with glibc alone: scripts/build-shim.sh builds one for both"
            }
            Self::SetId => {
                "changes its user or group (set-user-ID or set-group-ID), and what its caller preloads is ignored: \
                 run a copy without that bit"
            }
            Self::Capabilities => {
                "has file capabilities, and what its caller preloads is ignored: run a copy without them, or as root"
            }
        };
        format!("{} {effect}: it {why}", program.display().to_string().escape_debug())
    }
}

/// Checks the program that `name` resolves to with this `PATH`, and the interpreters of scripts. None where it can load the
/// library, or nothing is known.
pub(crate) fn obstacle(name: &OsStr, search: Option<&OsStr>, library: &Path) -> Option<(Obstacle, PathBuf)> {
    let mut program = find(name, search)?;
    for _ in 0..MAX_INTERPRETERS {
        let file = File::open(&program).ok()?;
        let mut head = [0; HEAD];
        let len = read_head(&file, &mut head);
        let Some(line) = head[..len].strip_prefix(b"#!") else {
            let found = in_elf(&file, library).or_else(|| in_file(&program, &file))?;
            return Some((found, program));
        };
        program = interpreter(line, search)?;
    }
    None
}

fn read_head(file: &File, head: &mut [u8]) -> usize {
    let mut file = file;
    file.read(head).unwrap_or(0)
}

fn find(name: &OsStr, search: Option<&OsStr>) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|about| about.is_file() && about.permissions().mode() & EXECUTABLE != 0)
    };
    std::env::split_paths(search?).map(|folder| folder.join(name)).find(is_program)
}

/// The interpreter that the first line of a script names; `env` is replaced by the program that it starts.
fn interpreter(line: &[u8], search: Option<&OsStr>) -> Option<PathBuf> {
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ' || byte == b'\t').filter(|word| !word.is_empty());
    let first = OsString::from_vec(words.next()?.to_vec());
    if Path::new(&first).file_name() != Some(OsStr::new("env")) {
        return Some(first.into());
    }
    let program = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    find(OsStr::from_bytes(program), search)
}

/// The obstacle that its header and segments show.
fn in_elf(file: &File, library: &Path) -> Option<Obstacle> {
    let elf = match Elf::open(file)? {
        Kind::Own(elf) => elf,
        Kind::Foreign => return Some(Obstacle::Foreign),
    };
    if !elf.has_loader() {
        // A loader that is started by name has no loader itself, but a name as a library.
        return (!elf.is_library()).then_some(Obstacle::Static);
    }
    let is_musls = elf.loader().is_some_and(|path| path.contains("ld-musl"));
    (is_musls && !loads_with_musl(library)).then_some(Obstacle::Libc)
}

/// Whether a library needs others only that musl takes for itself. One that cannot be read is not judged.
pub(crate) fn loads_with_musl(library: &Path) -> bool {
    let Ok(file) = File::open(library) else { return true };
    let Some(Kind::Own(elf)) = Elf::open(&file) else { return true };
    elf.needed().iter().all(|name| MUSLS.iter().any(|own| name.starts_with(own)))
}

/// The obstacle that its mode and attributes show.
fn in_file(path: &Path, file: &File) -> Option<Obstacle> {
    let about = file.metadata().ok()?;
    if statvfs(path).is_ok_and(|mounted| mounted.f_flag.contains(StatVfsMountFlags::NOSUID)) {
        return None;
    }
    let mode = about.permissions().mode();
    let changes_user = mode & SET_USER != 0 && about.uid() != geteuid().as_raw();
    // Without the right to execute the bit means something else.
    let changes_group = mode & SET_GROUP != 0 && mode & GROUP_EXECUTE != 0 && about.gid() != getegid().as_raw();
    if changes_user || changes_group {
        return Some(Obstacle::SetId);
    }
    let mut value = [0_u8; 64];
    let has_capabilities = !geteuid().is_root() && getxattr(path, "security.capability", &mut value[..]).is_ok();
    has_capabilities.then_some(Obstacle::Capabilities)
}

/// As many as the kernel follows.
const MAX_INTERPRETERS: u32 = 5;
/// Bytes of a script's first line that the kernel reads (`BINPRM_BUF_SIZE`).
const HEAD: usize = 256;
const EXECUTABLE: u32 = 0o111;
const GROUP_EXECUTE: u32 = 0o010;
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
/// Beginnings of the names that musl's loader takes for itself (`ldso/dynlink.c`).
const MUSLS: [&str; 7] = ["libc.", "libpthread.", "librt.", "libm.", "libdl.", "libutil.", "libxnet."];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::{MACHINE, PT_DYNAMIC, PT_INTERP};
    use std::fs::Permissions;

    /// An ELF file with segments of these types.
    fn elf(machine: u16, segments: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56 * segments.len()];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32] = 64;
        (bytes[54], bytes[56]) = (56, segments.len() as u8);
        for (index, kind) in segments.iter().enumerate() {
            bytes[64 + 56 * index] = *kind as u8;
        }
        bytes
    }

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn add(&self, name: &str, content: &[u8]) -> PathBuf {
            let path = self.0.path().join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
            path
        }

        fn obstacle(&self, name: &str) -> Option<(Obstacle, PathBuf)> {
            obstacle(OsStr::new(name), Some(self.0.path().as_os_str()), Path::new("/none"))
        }
    }

    #[test]
    fn a_program_without_a_loader_is_static() {
        let folder = Folder::new();
        let found = folder.add("static", &elf(MACHINE, &[1, 1]));
        assert_eq!(folder.obstacle("static"), Some((Obstacle::Static, found)));
        folder.add("dynamic", &elf(MACHINE, &[1, PT_INTERP, PT_DYNAMIC]));
        assert_eq!(folder.obstacle("dynamic"), None);
        folder.add("foreign", &elf(MACHINE + 1, &[1, PT_INTERP]));
        assert_eq!(folder.obstacle("foreign").map(|(found, _)| found), Some(Obstacle::Foreign));
        assert_eq!(folder.obstacle("missing"), None);
        folder.add("short", b"\x7fELF");
        folder.add("text", b"echo hello\n");
        assert_eq!((folder.obstacle("short"), folder.obstacle("text")), (None, None));
    }

    #[test]
    fn a_program_of_musl_needs_a_library_that_musl_loads() {
        let folder = Folder::new();
        let name = b"/lib/ld-musl-x86_64.so.1\0";
        let mut program = elf(MACHINE, &[PT_INTERP]);
        program[64 + 8] = program.len() as u8;
        program.extend_from_slice(name);
        let path = folder.add("program", &program);
        let obstacle = |library: &Path| obstacle(path.as_os_str(), None, library);
        // This test needs libgcc, or the loader of glibc.
        let me = std::env::current_exe().unwrap();
        assert!(!loads_with_musl(&me));
        assert_eq!(obstacle(&me), Some((Obstacle::Libc, path.clone())));
        let portable = folder.add("librdmesh.so", &elf(MACHINE, &[PT_DYNAMIC]));
        assert_eq!((obstacle(&portable), obstacle(Path::new("/none"))), (None, None));
    }

    #[test]
    fn a_script_is_as_static_as_its_interpreter() {
        let folder = Folder::new();
        let shell = folder.add("shell", &elf(MACHINE, &[1]));
        folder.add("one", format!("#! {} -e\necho", shell.display()).as_bytes());
        folder.add("two", b"#!/usr/bin/env -S A=b shell -x\n");
        folder.add("three", format!("#!{}\n", folder.0.path().join("two").display()).as_bytes());
        for script in ["one", "two", "three"] {
            assert_eq!(folder.obstacle(script), Some((Obstacle::Static, shell.clone())), "{script}");
        }
        let endless = folder.0.path().join("endless");
        folder.add("endless", format!("#!{}\n", endless.display()).as_bytes());
        assert_eq!(folder.obstacle("endless"), None);
    }

    #[test]
    fn this_test_and_the_loader_are_no_obstacles() {
        let me = std::env::current_exe().unwrap();
        assert_eq!(obstacle(me.as_os_str(), None, &me), None);
        let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
        if loader.exists() {
            assert_eq!(obstacle(loader.as_os_str(), None, &me), None);
        }
    }

    #[test]
    fn a_program_that_changes_its_user_is_named() {
        let folder = Folder::new();
        let path = folder.add("changes", &elf(MACHINE, &[PT_INTERP]));
        let mode = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        mode(0o4755);
        assert_eq!(folder.obstacle("changes"), None, "to the user that it has already");
        if geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
            for bits in [0o4755, 0o2755] {
                mode(bits);
                assert_eq!(folder.obstacle("changes"), Some((Obstacle::SetId, path.clone())), "{bits:o}");
            }
            mode(0o2745);
            assert_eq!(folder.obstacle("changes"), None);
        }
        let warning = Obstacle::SetId.warning(Path::new("/a\nb"), "sees no RDMA device");
        assert!(warning.starts_with("/a\\nb sees no RDMA device") && !warning.contains('\n'), "{warning}");
    }
}
