//! What an output folder may not hold.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use crate::exec::sys::read_lease;
use crate::fsx;
use crate::model::path::RelPath;
use crate::model::tree::link_stays_inside;

/// Something in an output that can't be part of a tree.
#[derive(Debug, thiserror::Error)]
pub enum OutputFault {
    /// A device, a pipe or a socket.
    #[error("{path} in the output is {what}: only files, folders and links can be kept")]
    Special {
        /// Where.
        path: RelPath,
        /// What it is.
        what: &'static str,
    },
    /// A file with a setuid or setgid bit.
    #[error("{path} in the output has a setuid or setgid bit (mode {mode:04o})")]
    Setuid {
        /// Where.
        path: RelPath,
        /// Its mode.
        mode: u32,
    },
    /// A link that is absolute, leads out of the output, or leads nowhere.
    #[error("the link {path} in the output points to {}, which is {why}", crate::canon::quote(.target))]
    Link {
        /// Where.
        path: RelPath,
        /// Where it points.
        target: Vec<u8>,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Somebody still writes.
    #[error("{path} in the output is still open for writing somewhere")]
    Writer {
        /// Where.
        path: RelPath,
    },
    /// The disk said no.
    #[error("cannot look at {path} in the output: {source}")]
    Io {
        /// Where, or the output folder itself.
        path: String,
        /// What the system says.
        source: io::Error,
    },
}

impl OutputFault {
    /// What to do next.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Special { .. } => Some("write such things to $TMPDIR"),
            Self::Setuid { .. } => Some("take the bit away in the step: chmod u-s,g-s"),
            Self::Link { .. } => Some("link relatively to something in the output, or copy what is needed"),
            Self::Writer { .. } => Some("end that process, then build again"),
            Self::Io { .. } => None,
        }
    }
}

/// Looks through an output folder before it is taken: devices, pipes, sockets, setuid bits, links that are absolute,
/// dangling or lead out, and files that somebody still has open for writing are faults. Folders and files that the step
/// closed to their owner are opened again (modes are no part of a tree). The folder must belong to the caller.
pub fn check_output(out: &Path) -> Result<(), OutputFault> {
    let mut folders = vec![Vec::new()];
    while let Some(folder) = folders.pop() {
        let at = out.join(std::ffi::OsStr::from_bytes(&folder));
        let failed = |source| OutputFault::Io { path: at.display().to_string(), source };
        let mode = fs::symlink_metadata(&at).map_err(failed)?.permissions().mode();
        if mode & 0o700 != 0o700 {
            fsx::set_mode(&at, mode & 0o7777 | 0o700).map_err(|e| failed(e.source))?;
        }
        for entry in fs::read_dir(&at).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let mut name = folder.clone();
            if !name.is_empty() {
                name.push(b'/');
            }
            name.extend_from_slice(entry.file_name().as_bytes());
            let path = RelPath::new(name.clone()).map_err(|e| failed(io::Error::other(e)))?;
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() {
                folders.push(name);
            } else if kind.is_symlink() {
                link(out, path, &entry.path())?;
            } else if kind.is_file() {
                file(path, &entry.path())?;
            } else {
                let what = if kind.is_fifo() {
                    "a pipe"
                } else if kind.is_socket() {
                    "a socket"
                } else {
                    "a device"
                };
                return Err(OutputFault::Special { path, what });
            }
        }
    }
    Ok(())
}

fn link(out: &Path, path: RelPath, at: &Path) -> Result<(), OutputFault> {
    let io = |source| OutputFault::Io { path: path.to_string(), source };
    let target = fs::read_link(at).map_err(io)?.as_os_str().as_bytes().to_vec();
    let why = if target.first() == Some(&b'/') {
        "absolute"
    } else if !link_stays_inside(&path, &target) {
        "outside"
    } else {
        // Through other links it may lead out all the same.
        match (fs::canonicalize(at), fs::canonicalize(out)) {
            (Ok(end), Ok(out)) if end.starts_with(&out) => return Ok(()),
            (Ok(_), _) => "outside",
            (Err(_), _) => "not there",
        }
    };
    Err(OutputFault::Link { path, target, why })
}

fn file(path: RelPath, at: &Path) -> Result<(), OutputFault> {
    let io = |source| OutputFault::Io { path: path.to_string(), source };
    let m = fs::symlink_metadata(at).map_err(io)?;
    if m.mode() & 0o6000 != 0 {
        return Err(OutputFault::Setuid { mode: m.mode() & 0o7777, path });
    }
    if m.mode() & 0o400 == 0 {
        fsx::set_mode(at, m.mode() & 0o7777 | 0o400).map_err(|e| io(e.source))?;
    }
    // Without waiting: what was a file a moment ago may be a pipe now.
    let file = File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(at).map_err(io)?;
    // A process that is just being started holds a copy of every descriptor of its parent until it executes: whoever
    // is a writer for so short a time is none.
    for wait in [0, 1, 4, 16, 64] {
        std::thread::sleep(Duration::from_millis(wait));
        // Some file systems have no leases; everything that the step started is dead either way.
        if read_lease(&file).unwrap_or(true) {
            return Ok(());
        }
    }
    Err(OutputFault::Writer { path })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn fault(make: impl FnOnce(&Path)) -> String {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path());
        check_output(dir.path()).unwrap_err().to_string()
    }

    #[test]
    fn ordinary_files_folders_and_links_pass_and_closed_ones_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/f"), "x").unwrap();
        symlink("sub/f", dir.path().join("l")).unwrap();
        symlink("../l", dir.path().join("sub/up")).unwrap();
        fs::set_permissions(dir.path().join("sub/f"), fs::Permissions::from_mode(0o0)).unwrap();
        fs::set_permissions(dir.path().join("sub"), fs::Permissions::from_mode(0o0)).unwrap();
        check_output(dir.path()).unwrap();
        assert_eq!(fs::metadata(dir.path().join("sub")).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::read(dir.path().join("sub/f")).unwrap(), b"x");
    }

    #[test]
    fn pipes_sockets_and_setuid_files_are_refused_by_name() {
        let pipe = |d: &Path| {
            let at = d.join("p\n");
            rustix::fs::mknodat(rustix::fs::CWD, at, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        };
        assert_eq!(fault(pipe), "\"p\\n\" in the output is a pipe: only files, folders and links can be kept");
        let socket = |d: &Path| drop(std::os::unix::net::UnixListener::bind(d.join("s")).unwrap());
        assert!(fault(socket).contains("s in the output is a socket"));
        let setuid = |d: &Path| {
            fs::write(d.join("x"), "").unwrap();
            fs::set_permissions(d.join("x"), fs::Permissions::from_mode(0o4755)).unwrap();
        };
        assert_eq!(fault(setuid), "x in the output has a setuid or setgid bit (mode 4755)");
    }

    #[test]
    fn links_that_are_absolute_dangling_or_lead_out_are_refused_by_name() {
        let target = |t: &'static str| fault(move |d| symlink(t, d.join("l")).unwrap());
        assert_eq!(target("/etc/hostname"), "the link l in the output points to \"/etc/hostname\", which is absolute");
        assert_eq!(target("../x"), "the link l in the output points to \"../x\", which is outside");
        assert_eq!(target("nowhere"), "the link l in the output points to \"nowhere\", which is not there");
        let through = |d: &Path| {
            fs::create_dir_all(d.join("a/b")).unwrap();
            symlink("a/b", d.join("deep")).unwrap();
            symlink("deep/../..", d.join("z")).unwrap();
        };
        let text = fault(through);
        assert!(text.contains("the link z in the output points to \"deep/../..\", which is outside"), "{text}");
    }

    #[test]
    fn a_file_that_is_still_open_for_writing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let writer = File::create(dir.path().join("f")).unwrap();
        let probe = File::open(dir.path().join("f")).unwrap();
        if read_lease(&probe).is_err() {
            // This file system has no leases, and check_output can't tell.
            check_output(dir.path()).unwrap();
            return;
        }
        assert_eq!(
            check_output(dir.path()).unwrap_err().to_string(),
            "f in the output is still open for writing somewhere"
        );
        drop(writer);
        check_output(dir.path()).unwrap();
    }
}
