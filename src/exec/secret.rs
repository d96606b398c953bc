//! Secrets: values that a step is handed over and that are to be found nowhere afterwards.

use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::statfs;

use crate::exec::ExecError;
use crate::fsx;

/// What stands in a log where a secret was.
pub const MASK: &[u8] = b"***";
// Shorter ones stand by chance in every log.
const SHORTEST: usize = 6;
const TMPFS: u32 = 0x0102_1994;

/// The secrets of a step: name and value.
#[derive(Clone, Default)]
pub struct Secrets(Vec<(String, Vec<u8>)>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|s| &s.0)).finish()
    }
}

/// Why a secret can't be handed over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The caller has no such variable.
    #[error("the secret {0} is not there: the variable {0} is not set")]
    Missing(String),
    /// It can't be told from other text.
    #[error("the secret {0} has {1} characters: one so short can't be kept out of logs and results")]
    Short(String, usize),
}

impl SecretError {
    /// What to do.
    pub fn hint(&self) -> String {
        match self {
            Self::Missing(name) => format!("set it for this command: {name}=… graftwerk build"),
            Self::Short(..) => format!("use one of {SHORTEST} characters or more"),
        }
    }
}

impl Secrets {
    /// Takes the values out of the caller's environment. Errors: [`SecretError`] for the first that is not there.
    pub fn from_environment(names: &[String]) -> Result<Self, SecretError> {
        let value = |name: &String| {
            let value = std::env::var_os(name).filter(|v| !v.is_empty());
            let value = value.ok_or_else(|| SecretError::Missing(name.clone()))?.as_bytes().to_vec();
            if value.len() < SHORTEST {
                return Err(SecretError::Short(name.clone(), value.len()));
            }
            Ok((name.clone(), value))
        };
        names.iter().map(value).collect::<Result<_, _>>().map(Self)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn longest(&self) -> usize {
        self.0.iter().map(|s| s.1.len()).max().unwrap_or(0)
    }

    /// Whether a secret stands in the file. Errors: the disk's.
    pub fn in_file(&self, path: &Path) -> io::Result<Option<&str>> {
        let Some(overlap) = self.longest().checked_sub(1) else { return Ok(None) };
        let mut file = std::fs::File::open(path)?;
        let mut buffer = vec![0; overlap + (1 << 20)];
        let mut kept = 0;
        loop {
            let n = match file.read(&mut buffer[kept..]) {
                Ok(0) => return Ok(None),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let filled = kept + n;
            if let Some(name) = self.in_bytes(&buffer[..filled]) {
                return Ok(Some(name));
            }
            let from = filled - overlap.min(filled);
            buffer.copy_within(from..filled, 0);
            kept = filled - from;
        }
    }

    /// Whether a secret stands in the bytes.
    pub fn in_bytes(&self, bytes: &[u8]) -> Option<&str> {
        let found = |value: &[u8]| bstr::ByteSlice::find(bytes, value).is_some();
        self.0.iter().find(|s| found(&s.1)).map(|s| s.0.as_str())
    }

    /// Writes each into a file of its own in a folder in memory, which is gone when the answer is dropped. Errors:
    /// [`ExecError::Io`], also where no folder of this host is in memory.
    pub fn hand_over(&self) -> Result<HandedOver, ExecError> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let candidates = runtime.into_iter().chain([PathBuf::from("/dev/shm"), PathBuf::from("/run")]);
        let base =
            candidates.filter(|d| in_memory(d)).find(|d| rustix::fs::access(d, rustix::fs::Access::WRITE_OK).is_ok());
        let nowhere = || ExecError::Io {
            what: "no folder of this host lies in memory, where secrets could be handed over".to_owned(),
            source: io::Error::from(io::ErrorKind::NotFound),
        };
        let base = base.ok_or_else(nowhere)?;
        sweep(&base);
        let failed = |p: &Path| ExecError::io(format!("cannot hand over a secret in {}", p.display()));
        let unique = u64::from_ne_bytes(random()?);
        let dir = base.join(format!("graftwerk-secrets-{}-{unique:016x}", std::process::id()));
        let made = fsx::create_dir(&dir).and_then(|()| fsx::set_mode(&dir, 0o700));
        made.map_err(|e| e.source).map_err(failed(&dir))?;
        let handed = HandedOver { dir, names: self.0.iter().map(|s| s.0.clone()).collect() };
        for (name, value) in &self.0 {
            let path = handed.dir.join(name);
            // Whoever the step runs as must be able to read it; the folder lets nobody else in.
            fsx::write_new(&path, value, 0o444).map_err(|e| e.source).map_err(failed(&path))?;
        }
        Ok(handed)
    }
}

fn random() -> Result<[u8; 8], ExecError> {
    let mut bytes = [0; 8];
    let urandom = std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes));
    urandom.map_err(ExecError::io("cannot read /dev/urandom"))?;
    Ok(bytes)
}

fn in_memory(dir: &Path) -> bool {
    statfs(dir).is_ok_and(|s| u32::try_from(s.f_type).is_ok_and(|t| t == TMPFS))
}

// What a process that was killed left behind.
fn sweep(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|n| n.strip_prefix("graftwerk-secrets-")) else { continue };
        let alive = rest.split('-').next().is_some_and(|pid| Path::new("/proc").join(pid).exists());
        if !alive {
            let _ = fsx::remove_tree(&entry.path());
        }
    }
}

/// Secrets in files in memory.
#[derive(Debug)]
pub struct HandedOver {
    dir: PathBuf,
    names: Vec<String>,
}

impl HandedOver {
    /// Name and file of each.
    pub fn files(&self) -> impl Iterator<Item = (&str, PathBuf)> {
        self.names.iter().map(|n| (n.as_str(), self.dir.join(n)))
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        // In memory: gone with the machine at the latest, and swept by the next command that hands something over.
        let _ = fsx::remove_tree(&self.dir);
    }
}

/// Takes secrets out of a stream of bytes, wherever it is cut.
pub struct Masked<'a> {
    secrets: &'a Secrets,
    held: Vec<u8>,
}

impl<'a> Masked<'a> {
    /// For these secrets.
    pub fn new(secrets: &'a Secrets) -> Self {
        Self { secrets, held: Vec::new() }
    }

    /// Takes the next bytes; gives what can be passed on.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.secrets.is_empty() {
            return bytes.to_vec();
        }
        self.held.extend_from_slice(bytes);
        self.passed(false)
    }

    /// What is left at the end.
    pub fn finish(&mut self) -> Vec<u8> {
        self.passed(true)
    }

    // Everything up to where a secret may have begun that is not there whole yet.
    fn passed(&mut self, at_end: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.held.len());
        let mut at = 0;
        while let Some(rest) = self.held.get(at..).filter(|r| !r.is_empty()) {
            let unfinished = self.secrets.0.iter().any(|s| s.1.len() > rest.len() && s.1.starts_with(rest));
            if unfinished && !at_end {
                break;
            }
            match self.secrets.0.iter().map(|s| &s.1).filter(|v| rest.starts_with(v)).map(Vec::len).max() {
                Some(len) => {
                    out.extend_from_slice(MASK);
                    at += len;
                }
                None => {
                    out.extend(rest.first());
                    at += 1;
                }
            }
        }
        self.held.drain(..at);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> Secrets {
        Secrets(vec![("A".into(), b"hf_TESTSECRET".to_vec()), ("B".into(), b"hf_TEST".to_vec())])
    }

    #[test]
    fn a_secret_is_masked_wherever_the_stream_is_cut() {
        let secrets = secrets();
        let text = b"x hf_TESTSECRET y hf_TES hf_TEShf_TESTSECRE\n";
        for cut in 1..text.len() {
            let mut masked = Masked::new(&secrets);
            let mut out = Vec::new();
            for piece in text.chunks(cut) {
                out.extend(masked.push(piece));
            }
            out.extend(masked.finish());
            let out = String::from_utf8(out).unwrap();
            assert_eq!(out, "x *** y hf_TES hf_TES***SECRE\n", "{cut}");
        }
    }

    #[test]
    fn a_secret_is_found_in_a_file_across_any_border() {
        let t = tempfile::tempdir().unwrap();
        let path = t.path().join("f");
        for at in [0, 1, (1 << 20) - 5, (1 << 20) + 7, 3 << 20] {
            let mut bytes = vec![b'.'; at];
            bytes.extend_from_slice(b"hf_TEST");
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(secrets().in_file(&path).unwrap(), Some("B"), "{at}");
            bytes.truncate(bytes.len() - 1);
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(secrets().in_file(&path).unwrap(), None, "{at}");
        }
    }

    #[test]
    fn what_is_handed_over_lies_in_memory_and_is_gone_afterwards() {
        let handed = secrets().hand_over().unwrap();
        let files: Vec<PathBuf> = handed.files().map(|f| f.1).collect();
        assert!(in_memory(&files[0]));
        assert_eq!(std::fs::read(&files[0]).unwrap(), b"hf_TESTSECRET");
        drop(handed);
        assert!(!files[0].parent().unwrap().exists());
    }

    #[test]
    fn a_missing_secret_and_a_short_one_are_errors_and_no_text_of_ours_shows_a_value() {
        assert_eq!(
            Secrets::from_environment(&["GRAFTWERK_NO_SUCH".into()]).unwrap_err(),
            SecretError::Missing("GRAFTWERK_NO_SUCH".into())
        );
        assert_eq!(format!("{:?}", secrets()), r#"["A", "B"]"#);
    }
}
