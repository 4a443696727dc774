//! Programs that cannot load the preload library: statically linked ones have no dynamic loader, and the loader of set-user-ID
//! ones ignores `LD_PRELOAD`.

use rustix::fs::{StatVfsMountFlags, getxattr, statvfs};
use rustix::process::{getegid, geteuid};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Reason why a program cannot load the library.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// It has no loader.
    Static,
    /// It is for processors or a word size that the library is not for.
    Foreign,
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
pub(crate) fn obstacle(name: &OsStr, search: Option<&OsStr>) -> Option<(Obstacle, PathBuf)> {
    let mut program = find(name, search)?;
    for _ in 0..MAX_INTERPRETERS {
        let file = File::open(&program).ok()?;
        let mut head = [0; HEAD];
        let len = read_head(&file, &mut head);
        let Some(line) = head[..len].strip_prefix(b"#!") else {
            let found = in_elf(&file).or_else(|| in_file(&program, &file))?;
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

/// The obstacle that its header and segments show (System V ABI, chapters 4 and 5).
fn in_elf(file: &File) -> Option<Obstacle> {
    let header: [u8; 64] = read_at(file, 0)?;
    if !header.starts_with(b"\x7fELF") {
        return None;
    }
    let is_of_this_kind = header[4] == ELFCLASS64 && header[5] == ELFDATA2LSB && u16_at(&header, 18) == MACHINE;
    if !is_of_this_kind {
        return Some(Obstacle::Foreign);
    }
    let (table, size, count) = (u64_at(&header, 32), u16_at(&header, 54), u16_at(&header, 56));
    let mut dynamic = None;
    for index in 0..u64::from(count) {
        let segment: [u8; 56] = read_at(file, table.checked_add(index * u64::from(size))?)?;
        match u32_at(&segment, 0) {
            PT_INTERP => return None,
            PT_DYNAMIC => dynamic = Some((u64_at(&segment, 8), u64_at(&segment, 32))),
            _ => {}
        }
    }
    // A loader that is started by name has no loader itself, but a name as a library.
    let is_loader = dynamic.is_some_and(|(at, len)| has_tag(file, at, len, DT_SONAME));
    (!is_loader).then_some(Obstacle::Static)
}

fn has_tag(file: &File, at: u64, len: u64, tag: u64) -> bool {
    (0..len.min(MAX_DYNAMIC) / 16).any(|index| {
        let entry: Option<[u8; 16]> = at.checked_add(index * 16).and_then(|at| read_at(file, at));
        entry.is_some_and(|entry| u64_at(&entry, 0) == tag)
    })
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

fn read_at<const N: usize>(file: &File, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// As many as the kernel follows.
const MAX_INTERPRETERS: u32 = 5;
/// Bytes of a script's first line that the kernel reads (`BINPRM_BUF_SIZE`).
const HEAD: usize = 256;
const MAX_DYNAMIC: u64 = 1 << 16;
const EXECUTABLE: u32 = 0o111;
const GROUP_EXECUTE: u32 = 0o010;
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
const ELFCLASS64: u8 = 2;
const ELFDATA2LSB: u8 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_SONAME: u64 = 14;
/// `EM_X86_64` or `EM_AARCH64`.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

#[cfg(test)]
mod tests {
    use super::*;
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
            obstacle(OsStr::new(name), Some(self.0.path().as_os_str()))
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
        assert_eq!(obstacle(me.as_os_str(), None), None);
        let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
        if loader.exists() {
            assert_eq!(obstacle(loader.as_os_str(), None), None);
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
