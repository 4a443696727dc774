"""Asks libc everything about a list of paths: `paths.py ROOT`. With the library ROOT is empty; without it, it is a plain
directory tree of the same shape. What is printed has to be the same."""
import ctypes, errno, os, stat, sys

root = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
text = ctypes.c_char_p


def plain(value):
    """Without ROOT, and without what differs between two trees."""
    if isinstance(value, bytes):
        value = os.fsdecode(value)
    if isinstance(value, str):
        return value.replace(root, "") if root else value
    return value


def tell(what, call):
    try:
        result = call()
    except OSError as error:
        result = errno.errorcode[error.errno]
    if isinstance(result, (list, tuple)):
        result = [tuple(map(plain, item)) if isinstance(item, tuple) else plain(item) for item in result]
    print(what, plain(result), flush=True)


def failing():
    raise OSError(ctypes.get_errno(), "")


def about(found):
    return (stat.filemode(found.st_mode), found.st_size if stat.S_ISREG(found.st_mode) else 0)


def pointer(name, arguments, restype=ctypes.c_void_p):
    function = getattr(libc, name)
    function.restype, function.argtypes = restype, arguments
    return function


libc_realpath = pointer("realpath", [text, ctypes.c_void_p])
libc_canonicalize = pointer("canonicalize_file_name", [text])
libc_getcwd = pointer("getcwd", [ctypes.c_void_p, ctypes.c_size_t])
libc_dir_name = pointer("get_current_dir_name", [])
libc_fopen = pointer("fopen", [text, text])
libc_fgetc = pointer("fgetc", [ctypes.c_void_p], ctypes.c_int)
libc_fclose = pointer("fclose", [ctypes.c_void_p], ctypes.c_int)
libc_readlink_chk = pointer("__readlink_chk", [text, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t], ctypes.c_ssize_t)


def string(found):
    return ctypes.string_at(found) if found else failing()


def read(fd):
    try:
        return os.read(fd, 100) if stat.S_ISREG(os.fstat(fd).st_mode) else about(os.fstat(fd))
    finally:
        os.close(fd)


def stream(path):
    found = libc_fopen(path, b"r") or failing()
    first = libc_fgetc(found)
    libc_fclose(found)
    return first


def fortified_link(path):
    room = ctypes.create_string_buffer(300)
    length = libc_readlink_chk(path, room, 300, 300)
    return room.raw[:length] if length >= 0 else failing()


class Statx(ctypes.Structure):
    _fields_ = [("head", ctypes.c_uint32 * 7), ("mode", ctypes.c_uint16), ("rest", ctypes.c_uint8 * 226)]


def statx(path, flags):
    found = Statx()
    return stat.filemode(found.mode) if libc.statx(-100, path, flags, 0x7ff, ctypes.byref(found)) == 0 else failing()


class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("reclen", ctypes.c_uint16), ("kind", ctypes.c_uint8),
                ("name", ctypes.c_char * 256)]


def libc_scandir(name, *arguments):
    names = ctypes.POINTER(ctypes.POINTER(Dirent))()
    count = getattr(libc, name)(*arguments, ctypes.byref(names), None, None)
    return sorted((names[i].contents.name, names[i].contents.kind) for i in range(count)) if count >= 0 else failing()


class Ftw(ctypes.Structure):
    _fields_ = [("base", ctypes.c_int), ("level", ctypes.c_int)]


def nftw(path, flags):
    seen = []

    def visit(found, _, kind, at):
        seen.append((found, kind, found[at.contents.base:], at.contents.level))
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int, text, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(Ftw))
    return sorted(seen) if libc.nftw(path, kind(visit), 8, flags) == 0 else failing()


def ftw(path):
    seen = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, text, ctypes.c_void_p, ctypes.c_int)
    result = libc.ftw(path, kind(lambda found, _, type: seen.append((found, type)) or 0), 8)
    return sorted(seen) if result == 0 else failing()


class Entry(ctypes.Structure):
    _fields_ = [("links", ctypes.c_void_p * 3), ("number", ctypes.c_long), ("pointer", ctypes.c_void_p), ("accpath", text),
                ("path", text), ("errno", ctypes.c_int), ("symfd", ctypes.c_int), ("pathlen", ctypes.c_ushort),
                ("namelen", ctypes.c_ushort), ("ino", ctypes.c_uint64), ("dev", ctypes.c_uint64),
                ("nlink", ctypes.c_uint64), ("level", ctypes.c_short), ("info", ctypes.c_ushort)]


libc_fts_open = pointer("fts_open", [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p])
libc_fts_read = pointer("fts_read", [ctypes.c_void_p], ctypes.POINTER(Entry))
libc_fts_children = pointer("fts_children", [ctypes.c_void_p, ctypes.c_int])
libc_fts_close = pointer("fts_close", [ctypes.c_void_p], ctypes.c_int)


def fts(path, options):
    paths = (text * 2)(path, None)
    stream = libc_fts_open(paths, options, None) or failing()
    seen = []
    while entry := libc_fts_read(stream):
        found = entry.contents
        # The length counts ROOT.
        length = found.pathlen - len(root.encode() if found.path.startswith(root.encode()) else b"")
        seen.append((found.path, length, found.level, found.info, bool(libc_fts_children(stream, 0))))
        os.stat(found.accpath, follow_symlinks=False)
    libc_fts_close(stream)
    return sorted(seen)


class Glob(ctypes.Structure):
    _fields_ = [("count", ctypes.c_size_t), ("paths", ctypes.POINTER(text)), ("offset", ctypes.c_size_t),
                ("flags", ctypes.c_int), ("functions", ctypes.c_void_p * 5)]


def glob(pattern, flags):
    found = Glob()
    result = libc.glob(pattern, flags, None, ctypes.byref(found))
    paths = found.paths[:found.count] if result == 0 else result
    libc.globfree(ctypes.byref(found))
    return paths


def watch(path):
    watcher = libc.inotify_init()
    done = libc.inotify_add_watch(watcher, path, 0xfff)
    os.close(watcher)
    return "watched" if done >= 0 else failing()


def ask(path, name):
    """Everything, of `path`, which the output calls `name`."""
    raw = os.fsencode(path)
    tell(f"open {name}", lambda: read(os.open(path, os.O_RDONLY)))
    tell(f"open nofollow {name}", lambda: read(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)))
    tell(f"open directory {name}", lambda: read(os.open(path, os.O_RDONLY | os.O_DIRECTORY)))
    tell(f"fopen {name}", lambda: stream(raw))
    tell(f"stat {name}", lambda: about(os.stat(path)))
    tell(f"lstat {name}", lambda: about(os.lstat(path)))
    tell(f"statx {name}", lambda: statx(raw, 0))
    tell(f"statx link {name}", lambda: statx(raw, 0x100))
    for mode in (os.F_OK, os.R_OK, os.X_OK):
        tell(f"access {mode} {name}", lambda: os.access(path, mode))
        tell(f"eaccess {mode} {name}", lambda: libc.eaccess(raw, mode) == 0)
        tell(f"faccessat {mode} {name}", lambda: os.access(path, mode, effective_ids=True))
    tell(f"readlink {name}", lambda: os.readlink(path))
    tell(f"__readlink_chk {name}", lambda: fortified_link(raw))
    tell(f"realpath {name}", lambda: string(libc_realpath(raw, None)))
    tell(f"canonicalize_file_name {name}", lambda: string(libc_canonicalize(raw)))
    tell(f"Python's realpath {name}", lambda: os.path.realpath(path))
    tell(f"listdir {name}", lambda: sorted(os.listdir(path)))
    tell(f"scandir {name}", lambda: sorted((e.name, e.is_symlink(), e.is_dir()) for e in os.scandir(path)))
    tell(f"libc's scandir {name}", lambda: libc_scandir("scandir", raw))
    tell(f"listxattr {name}", lambda: os.listxattr(path))
    tell(f"llistxattr {name}", lambda: os.listxattr(path, follow_symlinks=False))
    tell(f"inotify {name}", lambda: watch(raw))
    tell(f"nftw {name}", lambda: nftw(raw, 1))
    tell(f"nftw depth {name}", lambda: nftw(raw, 1 | 8))
    tell(f"nftw chdir {name}", lambda: nftw(raw, 1 | 4))
    tell(f"fts {name}", lambda: fts(raw, 0x10))
    tell(f"fts comfollow nochdir {name}", lambda: fts(raw, 0x10 | 0x1 | 0x4))


def ask_within(folder, path):
    """`path` below an open directory, and below the working directory."""
    fd = os.open(root + folder, os.O_RDONLY | os.O_DIRECTORY)
    name = f"{folder} {path}"
    tell(f"openat {name}", lambda: read(os.open(path, os.O_RDONLY, dir_fd=fd)))
    tell(f"fstatat {name}", lambda: about(os.stat(path, dir_fd=fd)))
    tell(f"fstatat link {name}", lambda: about(os.stat(path, dir_fd=fd, follow_symlinks=False)))
    tell(f"faccessat {name}", lambda: os.access(path, os.R_OK, dir_fd=fd))
    tell(f"readlinkat {name}", lambda: os.readlink(path, dir_fd=fd))
    tell(f"scandirat {name}", lambda: libc_scandir("scandirat", fd, os.fsencode(path)))
    tell(f"fdopendir {name}", lambda: sorted(n for n in os.listdir(fd) if folder != "/sys/class" or "infini" in n))
    tell(f"proc {name}", lambda: os.readlink(f"/proc/self/fd/{fd}"))
    os.chdir(root + folder)
    tell(f"chdir {name}", os.getcwd)
    ask(path, name)
    tell(f"proc cwd {name}", lambda: os.readlink("/proc/self/cwd"))
    os.chdir("/")
    os.fchdir(fd)
    tell(f"fchdir {name}", os.getcwd)
    tell(f"getcwd's memory {name}", lambda: string(libc_getcwd(None, 0)))
    os.environ["PWD"] = root + folder
    tell(f"get_current_dir_name {name}", lambda: string(libc_dir_name()))
    tell(f"chdir on {name}", lambda: (os.chdir(path), os.getcwd())[1:])
    os.chdir("/")
    os.close(fd)


PATHS = """
    /sys/class/infiniband /sys/class/infiniband/ /sys//class/./infiniband /sys/class/infiniband/rxe0
    /sys/class/infiniband/rxe0/ /sys/class/infiniband/rxe0/. /sys/class/infiniband/rxe0/..
    /sys/class/infiniband/rxe0/../.. /sys/class/infiniband/rxe0/../../../../class/infiniband/rxe0/node_type
    /sys/class/infiniband/rxe0/node_type /sys/class/infiniband/rxe0/node_type/ /sys/class/infiniband/rxe0/node_type/x
    /sys/class/infiniband/rxe0/node_type/.. /sys/class/infiniband/rxe0/ports/1/gids /sys/class/infiniband/rxe0/subsystem
    /sys/class/infiniband/rxe0/subsystem/rxe0/ports/1/gids/0 /sys/class/infiniband/rxe0/device
    /sys/class/infiniband/rxe0/device/numa_node /sys/class/infiniband/rxe0/device/../../infiniband_verbs
    /sys/class/infiniband/rxe1 /sys/class/infiniband/rxe1/x /sys/class/infiniband/rxe1/../rxe0
    /sys/class/infiniband_verbs/uverbs0/ibdev /sys/class/infiniband_verbs/uverbs0/device/numa_node
    /sys/class/infiniband_mad /sys/class/net/../infiniband/rxe0 /sys/class/misc/rdma_cm /sys/class/misc/rdma_cm/dev
    /sys/dev/char/231:192 /sys/dev/char/231:192/../../infiniband/rxe0/node_type /sys/devices/virtual/infiniband/rxe0/../..
    /sys/devices/virtual/infiniband /sys/class/infiniband/rxe0/../../misc/rdma_cm/subsystem/rdma_cm
""".split()
WITHIN = [
    ("/sys/class/infiniband", path) for path in
    ". rxe0 rxe0/ rxe0/.. rxe0/../rxe0/ports ../infiniband_verbs/uverbs0 rxe0/node_type ../nothing rxe1".split()
] + [
    ("/sys/class/infiniband/rxe0", path) for path in
    "ports/1/gids/0 ../../infiniband_verbs/uverbs0/dev subsystem/rxe0 ../../../../class/infiniband/rxe0 ports".split()
] + [
    ("/sys/class/infiniband/rxe0/ports/1", path) for path in "../../node_type gids/.. ../1 .".split()
] + [
    ("/sys/class", path) for path in "infiniband infiniband/rxe0/node_type infiniband/rxe0/.. misc/rdma_cm".split()
]
GLOBS = """
    /sys/class/infiniband/* /sys/class/infiniband/*/node_* /sys/class/infiniband/rxe0/../*/rxe0 /sys/class/infini*/*
    /sys/class/infiniband/rxe?/ports/[0-9]/gids/* /sys/class/*/rxe0/ports /sys/class/infiniband/x* /s*s/cl*s/infiniband/rxe0
    /sys/class/infiniband/{rxe0,rxe1}/ports
""".split()

for path in PATHS:
    if path.endswith("rxe0/../.."):
        # What else is there differs.
        tell(f"realpath {path}", lambda: string(libc_realpath(os.fsencode(root + path), None)))
        tell(f"stat {path}", lambda: about(os.stat(root + path))[0])
    else:
        ask(root + path, path)
for folder, path in WITHIN:
    ask_within(folder, path)
for pattern in GLOBS:
    for flags in (0, 2, 1 << 10 | 1 << 3):
        tell(f"glob {flags} {pattern}", lambda: glob(os.fsencode(root + pattern), flags))
os.chdir(root + "/sys/class/infiniband")
tell("glob here", lambda: glob(b"*/ports/*", 0))
tell("ftw", lambda: ftw(os.fsencode(root + "/sys/class/infiniband/rxe0/ports")))
tell("nftw through links", lambda: nftw(os.fsencode(root + "/sys/class/infiniband_verbs/uverbs0"), 0))
tell("fts through links", lambda: fts(os.fsencode(root + "/sys/class/infiniband_verbs"), 0x2 | 0x4))
# What else is there differs.
ABOVE = ["/sys/class", "/sys/class/infiniband/..", "/sys/devices/virtual", "/sys/class/infiniband/rxe0/../..", "/sys/dev/char"]
for path in ABOVE:
    tell(f"listed {path}", lambda: sorted(n for n in os.listdir(root + path) if "infini" in n or n in ("10:58", "231:192")))
    tell(f"stat {path}", lambda: about(os.stat(root + path))[0])
    tell(f"realpath {path}", lambda: string(libc_realpath(os.fsencode(root + path), None)))
