//! The file system that a step sees: an empty tmpfs, and in it only what was declared.
//!
//! | path | what | written |
//! | --- | --- | --- |
//! | `/in/NAME`, or an input's `at` | inputs | no |
//! | `/usr/bin/python3`, … | programs, interpreters, libraries, each by itself | no |
//! | `/in.json` | the manifest | no |
//! | `/out` | the output | yes |
//! | `/tmp` | an empty folder on the host's disk | yes |
//! | `/dev` | null, zero, full, random, urandom, shm, fd, stdin, stdout, stderr | as devices |
//! | `/proc` | of the step's own PID namespace | no |
//! | `/etc` | passwd, group, hosts, nsswitch.conf, all fixed | no |
//!
//! A folder that already looks right is one bind mount. Any other input is built: its folders are made in the tmpfs and
//! each file is mounted onto an empty one. A mount takes some 20 µs; `fs.mount-max` (100,000 by default) bounds their
//! number, and the parent looks at it first.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive};

use crate::exec::helper::{Trouble, shown};
use crate::exec::namespaces::{HOST_NAME, USER};
use crate::exec::sys::{Restrict, restrict};
use crate::exec::wire::{Bytes, Orders, WireEntry, WireMount, WireSource};

/// Builds the root and moves into it. Afterwards nothing of the host is in reach but what was mounted.
pub(super) fn build(orders: &Orders) -> Result<(), Trouble> {
    // Nothing that is mounted here may show on the host.
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(Trouble::refused("mount(MS_PRIVATE)"))?;
    let root = orders.root.path();
    tmpfs(&root, c"mode=0755").map_err(Trouble::refused("mount(tmpfs)"))?;
    // Everything below is named relative to the new root: a long path on the host can't make a long path too long.
    std::env::set_current_dir(&root).map_err(Trouble::failed("enter the new root"))?;
    let mut maker = Maker { made: HashSet::new(), root_runs: orders_come_from_root() };
    for dir in ["in", "out", "tmp", "dev", "proc", "etc"] {
        maker.folder(Path::new(dir))?;
    }
    for (inside, target) in &orders.links {
        let at = relative(inside);
        maker.folder_of(&at)?;
        std::os::unix::fs::symlink(target.path(), &at).map_err(Trouble::failed(format!("link {}", shown(inside))))?;
    }
    for m in &orders.mounts {
        maker.mount(m)?;
    }
    if orders.network {
        maker.network_files()?;
    }
    etc_files()?;
    restrict(c".", Restrict::ReadOnly, true).map_err(Trouble::refused("mount_setattr (needs Linux 5.12)"))?;
    proc_and_dev()?;
    for (host, inside) in [(&orders.out, c"out"), (&orders.tmp, c"tmp")] {
        mount_bind_recursive(host.path(), inside).map_err(Trouble::failed(format!("mount {}", shown(host))))?;
        restrict(inside, Restrict::Writable, true).map_err(Trouble::refused("mount_setattr"))?;
    }
    // The old root is mounted over the new one and at once taken away.
    rustix::process::pivot_root(".", ".").map_err(Trouble::refused("pivot_root"))?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(Trouble::refused("umount of the old root"))?;
    std::env::set_current_dir("/").map_err(Trouble::failed("enter the new root"))
}

// Inside a user namespace root may look at every file while it mounts, and the program it runs may not.
fn orders_come_from_root() -> bool {
    fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| {
        map.lines().any(|l| {
            let mut n = l.split_whitespace();
            n.next() == Some(&USER.to_string()) && n.next() == Some("0")
        })
    })
}

fn relative(inside: &Bytes) -> PathBuf {
    let at = inside.path();
    at.strip_prefix("/").map(Path::to_path_buf).unwrap_or(at)
}

fn tmpfs(at: &Path, options: &CStr) -> io::Result<()> {
    mount("graftwerk", at, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, options).map_err(Into::into)
}

struct Maker {
    made: HashSet<PathBuf>,
    root_runs: bool,
}

impl Maker {
    fn folder(&mut self, at: &Path) -> Result<(), Trouble> {
        if at.as_os_str().is_empty() || self.made.contains(at) {
            return Ok(());
        }
        self.folder_of(at)?;
        match fs::DirBuilder::new().mode(0o755).create(at) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && at.is_dir() => {}
            Err(e) => return Err(Trouble::Failed(format!("make the folder /{}", at.display()), e, None)),
        }
        self.made.insert(at.to_path_buf());
        Ok(())
    }

    fn folder_of(&mut self, at: &Path) -> Result<(), Trouble> {
        at.parent().map_or(Ok(()), |p| self.folder(p))
    }

    fn mount(&mut self, m: &WireMount) -> Result<(), Trouble> {
        let at = relative(&m.inside);
        match &m.source {
            WireSource::File(host, executable) => {
                self.folder_of(&at)?;
                self.file(&host.path(), &at, *executable)
            }
            WireSource::Dir(host) => {
                self.folder(&at)?;
                // With what is mounted below: a user namespace may not uncover what a mount hides.
                mount_bind_recursive(host.path(), &at).map_err(Trouble::failed(format!(
                    "mount {} at {}",
                    shown(host),
                    shown(&m.inside)
                )))
            }
            WireSource::Tree(entries) => {
                self.folder(&at)?;
                for (path, entry) in entries {
                    let here = at.join(path.path());
                    match entry {
                        WireEntry::EmptyDir => self.folder(&here)?,
                        WireEntry::Link(target) => {
                            self.folder_of(&here)?;
                            let what = || format!("link {} in {}", shown(path), shown(&m.inside));
                            std::os::unix::fs::symlink(target.path(), &here)
                                .map_err(|e| Trouble::Failed(what(), e, None))?;
                        }
                        WireEntry::File(host, executable) => {
                            self.folder_of(&here)?;
                            self.file(&host.path(), &here, *executable)?;
                        }
                    }
                }
                Ok(())
            }
        }
    }

    fn file(&self, host: &Path, at: &Path, executable: bool) -> Result<(), Trouble> {
        let failed = |e: io::Error| Trouble::Failed(format!("mount {} at /{}", host.display(), at.display()), e, None);
        if executable || self.root_runs {
            let m = fs::metadata(host).map_err(failed)?;
            if self.root_runs && !readable_by_step(&m) {
                return Err(Trouble::Failed(
                    format!("{} belongs to somebody else and only its owner may read it", host.display()),
                    io::Error::from_raw_os_error(libc::EACCES),
                    Some("a step runs without root's privileges: make the file readable, or build as its owner".into()),
                ));
            }
            // The same bytes, once executable and once not, may be one file on the host.
            if executable && m.mode() & 0o100 == 0 {
                fs::copy(host, at).map_err(failed)?;
                return fs::set_permissions(at, fs::Permissions::from_mode(0o555)).map_err(failed);
            }
        }
        File::options().write(true).create_new(true).mode(0o444).open(at).map_err(failed)?;
        mount_bind(host, at).map_err(|e| failed(e.into()))
    }

    /// Names and certificates of the host, for a step that may use its network.
    fn network_files(&mut self) -> Result<(), Trouble> {
        for file in ["/etc/resolv.conf", "/etc/hosts"] {
            let at = Path::new(&file[1..]);
            if Path::new(file).is_file() && !at.exists() {
                self.file(Path::new(file), at, false)?;
            }
        }
        for dir in ["/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates"] {
            let at = Path::new(&dir[1..]);
            if Path::new(dir).is_dir() && !at.exists() {
                self.folder(at)?;
                mount_bind_recursive(dir, at).map_err(Trouble::failed(format!("mount {dir}")))?;
            }
        }
        Ok(())
    }
}

fn readable_by_step(m: &fs::Metadata) -> bool {
    let bit = if m.uid() == USER {
        0o400
    } else if m.gid() == USER {
        0o040
    } else {
        0o004
    };
    m.mode() & bit != 0
}

fn etc_files() -> Result<(), Trouble> {
    let files = [
        (
            "etc/passwd",
            format!(
                "root:x:0:0:root:/:/bin/false\n{HOST_NAME}:x:{USER}:{USER}:{HOST_NAME}:/tmp:/bin/sh\n\
                 nobody:x:65534:65534:nobody:/:/bin/false\n"
            ),
        ),
        ("etc/group", format!("root:x:0:\n{HOST_NAME}:x:{USER}:\nnogroup:x:65534:\n")),
        ("etc/hosts", format!("127.0.0.1 localhost {HOST_NAME}\n::1 localhost {HOST_NAME}\n")),
        ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n".to_owned()),
    ];
    for (at, text) in files {
        // An input may have been mounted there, and then it is what was declared.
        if !Path::new(at).exists() && Path::new("etc").is_dir() {
            fs::write(at, text).map_err(Trouble::failed(format!("write /{at}")))?;
        }
    }
    Ok(())
}

fn proc_and_dev() -> Result<(), Trouble> {
    let closed = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // Read-only as a whole: to the kernel the step may still be the host's root, and /proc/sys obeys that one.
    mount("proc", "proc", "proc", closed | MountFlags::RDONLY, None).map_err(Trouble::refused("mount(proc)"))?;
    tmpfs(Path::new("dev"), c"mode=0755").map_err(Trouble::refused("mount(tmpfs)"))?;
    for device in ["null", "zero", "full", "random", "urandom"] {
        let at = format!("dev/{device}");
        let failed = || format!("mount /dev/{device}");
        File::create(&at).map_err(Trouble::failed(failed()))?;
        mount_bind(format!("/dev/{device}"), &at).map_err(Trouble::failed(failed()))?;
        let c = CString::new(Path::new(&at).as_os_str().as_bytes())
            .map_err(|e| Trouble::Failed(failed(), e.into(), None))?;
        restrict(&c, Restrict::Device, false).map_err(Trouble::refused("mount_setattr"))?;
    }
    for (target, at) in [("fd", "fd"), ("fd/0", "stdin"), ("fd/1", "stdout"), ("fd/2", "stderr")] {
        std::os::unix::fs::symlink(format!("/proc/self/{target}"), format!("dev/{at}"))
            .map_err(Trouble::failed(format!("link /dev/{at}")))?;
    }
    fs::DirBuilder::new().mode(0o755).create("dev/shm").map_err(Trouble::failed("make /dev/shm"))?;
    restrict(c"dev", Restrict::ReadOnly, false).map_err(Trouble::refused("mount_setattr"))?;
    tmpfs(Path::new("dev/shm"), c"mode=1777").map_err(Trouble::refused("mount(tmpfs)"))
}
