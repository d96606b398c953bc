//! What the file system of a folder can do, found by trying it there.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::path::Path;

use crate::fsx::stat::now_ns;
use crate::fsx::{self, FileStat, FsResult, Placed, at, copy};

/// What a file system can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abilities {
    /// Its kind, as the kernel numbers it: `ext4`, `xfs`, …; else that number.
    pub kind: String,
    /// Whether files can share extents, so that copies cost nothing.
    pub clones: bool,
    /// Whether a file can have two names.
    pub hard_links: bool,
    /// Whether there are symbolic links.
    pub symlinks: bool,
    /// Whether a rename can refuse to replace.
    pub noreplace: bool,
    /// Whether `a` and `A` are two names.
    pub case_sensitive: bool,
    /// How far its clock is from this machine's, in nanoseconds: a file written now, seen from now.
    pub clock_skew_ns: i128,
}

// Two pieces of what copying takes for worth sharing.
const SAMPLE: usize = 2 << 20;

/// Tries everything in `dir`, an empty folder that the caller removes. Errors: where not even a file can be written.
pub fn abilities(dir: &Path) -> FsResult<Abilities> {
    let p = |name: &str| dir.join(name);
    let sample = p("sample");
    let mut file = File::create_new(&sample).map_err(at("write", &sample))?;
    file.write_all(&vec![7; SAMPLE]).and_then(|()| file.sync_all()).map_err(at("write", &sample))?;
    let now = now_ns();
    let stat = FileStat::at(&sample).map_err(at("look at", &sample))?;
    let renamed = |from: &str, to: &str| fsx::rename_noreplace(&p(from), &p(to));
    let empty = |name: &str| File::create_new(p(name)).map(drop).map_err(at("write", &p(name)));
    empty("a")?;
    empty("b")?;
    Ok(Abilities {
        kind: kind_of(dir).map_err(at("look at", dir))?,
        clones: clones(&sample, &p("clone")).map_err(at("write", &p("clone")))?,
        hard_links: fs::hard_link(&sample, p("link")).is_ok(),
        symlinks: std::os::unix::fs::symlink("sample", p("symlink")).is_ok(),
        noreplace: renamed("a", "b").is_ok_and(|r| r == Placed::Existed)
            && renamed("a", "c").is_ok_and(|r| r == Placed::Placed),
        case_sensitive: !p("B").exists(),
        clock_skew_ns: stat.mtime_ns - now,
    })
}

/// Whether files in `dir` can share extents; false where nothing can be written there.
pub fn shares_extents(dir: &Path) -> bool {
    let Ok(trial) = tempfile::Builder::new().prefix("shares-").tempdir_in(dir) else { return false };
    let shares = || {
        let (from, to) = (trial.path().join("a"), trial.path().join("b"));
        fs::write(&from, [7; 4096])?;
        Ok::<_, io::Error>(rustix::fs::ioctl_ficlone(File::create_new(&to)?, File::open(&from)?).is_ok())
    };
    shares().unwrap_or(false)
}

fn clones(from: &Path, to: &Path) -> io::Result<bool> {
    let (src, dst) = (File::open(from)?, File::create_new(to)?);
    let copied = copy::copy_range(&src, 0, &dst, 0, SAMPLE as u64, &mut |_| ControlFlow::Continue(()));
    Ok(copied.is_ok_and(|c| c.cloned > 0))
}

// statfs(2) and linux/magic.h.
fn kind_of(dir: &Path) -> io::Result<String> {
    let magic = rustix::fs::statfs(dir)?.f_type;
    let name = match u32::try_from(magic).unwrap_or_default() {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x2fc1_2fc1 => "zfs",
        0x0102_1994 => "tmpfs",
        0x794c_7630 => "overlayfs",
        0x6969 => "nfs",
        0xff53_4d42 | 0xfe53_4d42 => "cifs",
        0x4d44 => "vfat",
        0x2011_bab0 => "exfat",
        0x6573_5546 => "fuse",
        0x0bd0_0bd0 => "lustre",
        0x4750_4653 => "gpfs",
        0xca45_1a4e => "bcachefs",
        0x0102_1997 => "9p",
        _ => return Ok(format!("{magic:#x}")),
    };
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_this_machine_can_what_the_store_needs() {
        let t = tempfile::tempdir().unwrap();
        let a = abilities(t.path()).unwrap();
        assert!(a.hard_links && a.symlinks && a.noreplace && a.case_sensitive, "{a:?}");
        // One tick of the kernel's clock, and a good deal more for a busy machine.
        assert!(a.clock_skew_ns.abs() < 60_000_000_000, "{a:?}");
    }
}
