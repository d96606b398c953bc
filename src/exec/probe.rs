//! Whether this system lets steps be isolated.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::process::ExitCode;

use rustix::thread::UnshareFlags;

use crate::exec::spec::{Places, ProcessSpec};
use crate::exec::sys::{self, Forked};
use crate::exec::tools::Tools;
use crate::exec::{ExecError, namespaces, process};
use crate::kinds::ProcessStep;
use crate::model::run::Isolation;

/// Sets up a sandbox as for a step, in a scratch folder of its own below the system's, and takes it down again.
/// `helper` is the program to start as helper, `/proc/self/exe` where none is given. Errors: [`ExecError::Refused`]
/// where the system does not allow it.
pub fn isolation_works(helper: Option<&std::path::Path>) -> Result<(), ExecError> {
    let dir = tempfile::tempdir().map_err(ExecError::io("cannot make a scratch folder"))?;
    let out = dir.path().join("out");
    let scratch = dir.path().join("scratch");
    for d in [&out, &scratch] {
        std::fs::create_dir(d).map_err(ExecError::io(format!("cannot make the folder {}", d.display())))?;
    }
    let places = Places { out, scratch, log: dir.path().join("log") };
    let step = ProcessStep::default();
    let mut spec = ProcessSpec::new(&step, &BTreeMap::new(), &Tools::default(), places, Isolation::Namespaces)?;
    if let Some(h) = helper {
        spec.helper = h.to_path_buf();
    }
    process::rehearse(&spec)
}

/// `graftwerk __sandbox-probe`: a line for each namespace, and whether all of it together works. Exit code 1 where it
/// does not.
pub(super) fn main() -> ExitCode {
    let mut text = String::new();
    for (name, flag) in namespaces::ALL {
        let verdict = match alone(*flag) {
            Ok(()) => "yes".to_owned(),
            Err(e) => e.to_string(),
        };
        text.push_str(&format!("{name} namespace: {verdict}\n"));
    }
    let works = isolation_works(None);
    match &works {
        Ok(()) => text.push_str("isolation: yes\n"),
        Err(e) => {
            text.push_str(&format!("isolation: no\nerror: {e}\n"));
            if let Some(hint) = e.hint() {
                text.push_str(&format!("hint: {hint}\n"));
            }
        }
    }
    let written = io::stdout().write_all(text.as_bytes());
    if works.is_ok() && written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

// In a child, so that the probe itself stays where it is.
fn alone(flag: UnshareFlags) -> io::Result<()> {
    match sys::fork()? {
        Forked::Child => {
            let flags = flag | UnshareFlags::NEWUSER;
            let r = namespaces::unshare(flags);
            let r = if r.is_err() && flag != UnshareFlags::NEWUSER { namespaces::unshare(flag) } else { r };
            sys::exit_now(r.err().map_or(0, |e| e.raw_os_error().unwrap_or(255)))
        }
        Forked::Parent(pid) => match libc::WEXITSTATUS(sys::wait_for(pid)?) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        },
    }
}
