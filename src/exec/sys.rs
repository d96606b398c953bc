//! System calls that no safe wrapper covers. Each returns what the system says, nothing more.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};

fn check(r: libc::c_long) -> io::Result<libc::c_long> {
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r) }
}

/// Which side of a fork this is.
pub(super) enum Forked {
    /// The new process.
    Child,
    /// The old one, with the child's pid.
    Parent(i32),
}

/// Forks. The caller must be single-threaded: only then may the child allocate and take locks.
pub(super) fn fork() -> io::Result<Forked> {
    // SAFETY: the helper runs no second thread, so no lock can be held by a thread that the child lacks.
    match check(unsafe { libc::fork() }.into())? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(i32::try_from(pid).map_err(io::Error::other)?)),
    }
}

/// Ends this process at once, without destructors or flushing: the way out of a forked child.
pub(super) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit is always sound.
    unsafe { libc::_exit(code) }
}

/// Replaces the program. Returns only where that failed.
pub(super) fn exec(program: &CStr, argv: &[CString], env: &[CString]) -> io::Error {
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both lists end in a null pointer and every other pointer is a live C string.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// Closes every descriptor above 2: whatever leaked to us is none of a step's business. Only for a process that owns
/// none of them itself.
pub(super) fn close_others() -> io::Result<()> {
    // SAFETY: the helper calls this first; no value of its own stands for a descriptor above 2.
    if check(unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) }).is_ok() {
        return Ok(());
    }
    // Kernels before 5.9: one by one. The list is complete before the first is closed, its own descriptor in it.
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        open.extend(entry?.file_name().to_str().and_then(|s| s.parse::<i32>().ok()).filter(|fd| *fd > 2));
    }
    for fd in open {
        // SAFETY: as above; a descriptor that is gone gives EBADF.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// A copy of a descriptor that is closed on exec, numbered 3 or higher.
pub(super) fn dup_cloexec(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC touches nothing but the descriptor table.
    let new = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) }.into())?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(new).map_err(io::Error::other)?) })
}

/// Lets `number` (0, 1 or 2) be a copy of `fd` that stays open on exec.
pub(super) fn dup_onto(fd: BorrowedFd<'_>, number: i32) -> io::Result<()> {
    // SAFETY: 0, 1 and 2 are owned by nobody in the helper.
    check(unsafe { libc::dup2(fd.as_raw_fd(), number) }.into()).map(|_| ())
}

/// The signals that the helper waits for.
pub(super) struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks these signals, so that [`Signals::wait`] gets them.
    pub(super) fn block(list: &[i32]) -> io::Result<Self> {
        let mut set = empty_set();
        for s in list {
            // SAFETY: the set is initialised.
            check(unsafe { libc::sigaddset(&mut set, *s) }.into())?;
        }
        // SAFETY: the set is initialised; no old set is asked for.
        check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) }.into())?;
        Ok(Self(set))
    }

    /// Waits for one of them, at most `timeout` if there is one; `None` when the time is over.
    pub(super) fn wait(&self, timeout: Option<std::time::Duration>) -> io::Result<Option<i32>> {
        let spec = timeout.map(|t| libc::timespec {
            tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        let pointer = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        loop {
            // SAFETY: the set is initialised, the time lives until the call returns, no information is asked for.
            match check(unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), pointer) }.into()) {
                Ok(s) => return Ok(i32::try_from(s).ok()),
                Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

fn empty_set() -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set and can't fail for a valid pointer.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Every signal back to its default action, none blocked: the state a program expects to start in.
pub(super) fn reset_signals() {
    for s in 1..=64 {
        // SAFETY: SIG_DFL runs no code of ours; KILL, STOP and the C library's own give an error that means nothing.
        unsafe { libc::signal(s, libc::SIG_DFL) };
    }
    let set = empty_set();
    // SAFETY: the set is initialised.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) };
}

/// Sends a signal; -1 as pid is every process that we may signal, except ourselves and the namespace's first one.
pub(super) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::kill(pid, signal) }.into()).map(|_| ())
}

/// Reaps a child that has ended: its pid and raw status. `None` where none has ended yet; ECHILD where none is left.
pub(super) fn reap() -> io::Result<Option<(i32, i32)>> {
    let mut status = 0;
    // SAFETY: the status is a live integer.
    match check(unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) }.into())? {
        0 => Ok(None),
        pid => Ok(Some((i32::try_from(pid).map_err(io::Error::other)?, status))),
    }
}

/// Waits for one child; its raw status.
pub(super) fn wait_for(pid: i32) -> io::Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: the status is a live integer.
        match check(unsafe { libc::waitpid(pid, &mut status, 0) }.into()) {
            Ok(_) => return Ok(status),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_NOSUID: u64 = 2;
const MOUNT_ATTR_NODEV: u64 = 4;
const MOUNT_ATTR_NOEXEC: u64 = 8;

/// What a mount is restricted to.
#[derive(Clone, Copy)]
pub(super) enum Restrict {
    /// Nothing is written; no setuid, no devices.
    ReadOnly,
    /// A device node: nothing about it can be changed, nothing executed.
    Device,
    /// Written, but no setuid, no devices.
    Writable,
}

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

/// Restricts the mount at `path`, and with `recursive` every one below it (`mount_setattr`, Linux 5.12).
pub(super) fn restrict(path: &CStr, how: Restrict, recursive: bool) -> io::Result<()> {
    // 442 on every architecture since system calls are numbered alike.
    const SYS_MOUNT_SETATTR: libc::c_long = 442;
    let set = match how {
        Restrict::ReadOnly => MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV,
        Restrict::Device => MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC,
        Restrict::Writable => MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV,
    };
    let attr = MountAttr { set, clear: 0, propagation: 0, userns: 0 };
    let flags = if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the structure has the kernel's first layout, its size is passed, and it lives until the call returns.
    check(unsafe {
        libc::syscall(
            SYS_MOUNT_SETATTR,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags as libc::c_uint,
            std::ptr::from_ref(&attr),
            size_of::<MountAttr>(),
        )
    })
    .map(|_| ())
}

/// Brings the loopback interface of this network namespace up.
pub(super) fn loopback_up() -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketType};
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, and gets one.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, std::ptr::from_ref(&request)) }.into())
        .map(|_| ())
}

/// Tries to take a read lease. `Ok(false)`: somebody has the file open for writing.
pub(super) fn read_lease(file: &std::fs::File) -> io::Result<bool> {
    // SAFETY: F_SETLEASE takes an integer. The lease is given back at once, so no break signal can come.
    match check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) }.into()) {
        Ok(_) => {
            // SAFETY: as above.
            check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) }.into())?;
            Ok(true)
        }
        Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
        Err(e) => Err(e),
    }
}
