//! Copying a range of one file into another: by sharing extents where the file system can, else inside the kernel,
//! else by hand.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;

use crate::fsx::hit_file;

/// How the bytes of a range came over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copied {
    /// By shared extents: no data was moved.
    pub cloned: u64,
    /// By copy_file_range.
    pub in_kernel: u64,
    /// By read and write.
    pub by_hand: u64,
}

/// Why a range was not copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The caller said stop.
    #[error("stopped")]
    Stopped,
    /// The source ends inside the range.
    #[error("the file being copied from ends at {end}, inside the range {from}..{to}")]
    ShortSource {
        /// Start of the range.
        from: u64,
        /// End of the range.
        to: u64,
        /// Where the source ends.
        end: u64,
    },
    /// The disk said no.
    #[error(transparent)]
    Io(#[from] io::Error),
}

// Shared extents in smaller pieces are not worth their bookkeeping on disk.
const WORTH_CLONING: u64 = 1 << 20;
// One call each, so that the caller is asked in between.
const CLONE_PIECE: u64 = 1 << 30;
const KERNEL_PIECE: u64 = 16 << 20;
const HAND_PIECE: usize = 1 << 20;

/// Copies `len` bytes at `from` of `src` to `to` of `dst`. After every piece `step` gets the number of bytes done, and
/// may end the copy. Memory: at most 1 MiB. Errors: [`CopyError`]; a short source is one, and nothing is said of what
/// `dst` then holds.
pub fn copy_range(
    src: &File,
    from: u64,
    dst: &File,
    to: u64,
    len: u64,
    step: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Copied, CopyError> {
    hit_file("copy", dst)?;
    let mut job = Job { src, from, dst, to, len, done: 0, copied: Copied::default(), step };
    if let Some((head, middle)) = job.cloneable() {
        job.copy_until(head)?;
        job.clone_until(head + middle)?;
    }
    job.copy_until(len)?;
    Ok(job.copied)
}

struct Job<'a> {
    src: &'a File,
    from: u64,
    dst: &'a File,
    to: u64,
    len: u64,
    done: u64,
    copied: Copied,
    step: &'a mut dyn FnMut(u64) -> ControlFlow<()>,
}

impl Job<'_> {
    // The lengths of the unaligned head and of the whole blocks behind it, where both files have them at one phase.
    fn cloneable(&self) -> Option<(u64, u64)> {
        if self.len < WORTH_CLONING {
            return None;
        }
        let block = u64::try_from(rustix::fs::fstatfs(self.dst).ok()?.f_bsize).ok().filter(|b| b.is_power_of_two())?;
        if self.from % block != self.to % block {
            return None;
        }
        let head = self.from.next_multiple_of(block) - self.from;
        let middle = self.len.checked_sub(head)? / block * block;
        (middle >= WORTH_CLONING).then_some((head, middle))
    }

    fn advance(&mut self, n: u64) -> Result<(), CopyError> {
        self.done += n;
        if (self.step)(self.done).is_break() { Err(CopyError::Stopped) } else { Ok(()) }
    }

    // Whatever speaks against sharing (another file system, one that can't, a quota) leaves the rest to be copied, and
    // a copy reports what is really wrong.
    fn clone_until(&mut self, end: u64) -> Result<(), CopyError> {
        while self.done < end {
            let n = (end - self.done).min(CLONE_PIECE);
            if !clone_piece(self.src, self.from + self.done, self.dst, self.to + self.done, n) {
                return Ok(());
            }
            self.copied.cloned += n;
            self.advance(n)?;
        }
        Ok(())
    }

    fn copy_until(&mut self, end: u64) -> Result<(), CopyError> {
        use rustix::io::Errno;
        while self.done < end {
            let want = usize::try_from((end - self.done).min(KERNEL_PIECE)).unwrap_or(HAND_PIECE);
            let (mut at, mut into) = (self.from + self.done, self.to + self.done);
            match rustix::fs::copy_file_range(self.src, Some(&mut at), self.dst, Some(&mut into), want) {
                // Nothing came: the end of the source, or a file system whose files can't be spliced. Reading tells.
                Ok(0) => return self.copy_by_hand_until(end),
                Ok(n) => {
                    self.copied.in_kernel += n as u64;
                    self.advance(n as u64)?;
                }
                Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {
                    return self.copy_by_hand_until(end);
                }
                Err(e) => return Err(io::Error::from(e).into()),
            }
        }
        Ok(())
    }

    fn copy_by_hand_until(&mut self, end: u64) -> Result<(), CopyError> {
        let mut buf = vec![0u8; usize::try_from(end - self.done).unwrap_or(HAND_PIECE).min(HAND_PIECE)];
        while self.done < end {
            let want = usize::try_from(end - self.done).unwrap_or(HAND_PIECE).min(buf.len());
            let at = self.from + self.done;
            let got = match self.src.read_at(&mut buf[..want], at) {
                Ok(0) => return Err(CopyError::ShortSource { from: self.from, to: self.from + self.len, end: at }),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.into()),
            };
            self.dst.write_all_at(&buf[..got], self.to + self.done)?;
            self.copied.by_hand += got as u64;
            self.advance(got as u64)?;
        }
        Ok(())
    }
}

// Says whether the extents are shared now.
fn clone_piece(src: &File, from: u64, dst: &File, to: u64, len: u64) -> bool {
    if hit_file("clone", dst).is_err() {
        return false;
    }
    let range =
        libc::file_clone_range { src_fd: src.as_raw_fd().into(), src_offset: from, src_length: len, dest_offset: to };
    loop {
        // SAFETY: both descriptors are open for the whole call (borrowed files), FICLONERANGE reads one
        // file_clone_range through the pointer and keeps nothing of it.
        let rc = unsafe { libc::ioctl(dst.as_raw_fd(), libc::FICLONERANGE, &raw const range) };
        if rc == 0 {
            return true;
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
    }

    fn file_of(bytes: &[u8]) -> File {
        let mut f = tempfile::tempfile().unwrap();
        f.write_all(bytes).unwrap();
        f
    }

    fn bytes_of(file: &File) -> Vec<u8> {
        let mut out = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut out, 0).unwrap();
        out
    }

    #[test]
    fn a_range_arrives_whole_at_any_offsets() {
        let data = pattern(5 << 20);
        let src = file_of(&data);
        for (from, to, len) in [
            (0, 0, 5 << 20),
            (4096, 8192, 3 << 20),
            (5, 5 + 4096, (3 << 20) + 77),
            (17, 3, 2 << 20),
            (9, 9, 0),
            (1, 2, 1),
        ] {
            let dst = file_of(b"");
            let mut last = 0;
            let copied = copy_range(&src, from as u64, &dst, to as u64, len as u64, &mut |n| {
                assert!(n > last);
                last = n;
                ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!(copied.cloned + copied.in_kernel + copied.by_hand, len as u64);
            assert_eq!(last, len as u64);
            if len > 0 {
                assert!(bytes_of(&dst)[to..] == data[from..from + len], "{from} {to} {len}");
            }
        }
    }

    #[test]
    fn where_the_file_system_shares_extents_whole_blocks_are_shared_and_nowhere_else() {
        let data = pattern(5 << 20);
        let src = file_of(&data);
        let shares = rustix::fs::ioctl_ficlone(file_of(b""), &src).is_ok();
        let len = (3 << 20) + 77;
        for (from, to, aligned) in [(5u64, 5 + 65_536u64, true), (0, 0, true), (17, 3, false)] {
            let dst = file_of(b"");
            let copied = copy_range(&src, from, &dst, to, len, &mut |_| ControlFlow::Continue(())).unwrap();
            let most = if shares && aligned { len - 2 * 65_536..=len } else { 0..=0 };
            assert!(most.contains(&copied.cloned), "{from} {to}: {copied:?}");
            let (from, to, len) = (from as usize, to as usize, len as usize);
            assert!(bytes_of(&dst)[to..] == data[from..from + len], "{from} {to}");
        }
    }

    #[test]
    fn a_source_that_ends_too_early_is_an_error_with_its_end() {
        let (src, dst) = (file_of(&pattern(1000)), file_of(b""));
        let e = copy_range(&src, 10, &dst, 0, 2000, &mut |_| ControlFlow::Continue(())).unwrap_err();
        assert!(matches!(e, CopyError::ShortSource { from: 10, to: 2010, end: 1000 }), "{e:?}");
    }

    #[test]
    fn a_copy_stops_when_it_is_told_to() {
        let (src, dst) = (file_of(&pattern(40 << 20)), file_of(b""));
        let mut calls = 0;
        let e = copy_range(&src, 0, &dst, 1, 40 << 20, &mut |_| {
            calls += 1;
            ControlFlow::Break(())
        });
        assert!(matches!(e, Err(CopyError::Stopped)));
        assert_eq!(calls, 1);
    }

    #[test]
    fn files_that_can_not_be_spliced_are_copied_by_hand() {
        // copy_file_range from /proc gives nothing or EXDEV, and read does.
        let src = File::open("/proc/self/cmdline").unwrap();
        let dst = file_of(b"");
        let copied = copy_range(&src, 0, &dst, 0, 4, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(copied.by_hand, 4);
        assert_eq!(bytes_of(&dst).len(), 4);
    }
}
