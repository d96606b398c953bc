//! Follows a program to everything that it needs: links, interpreters, libraries.

use std::collections::BTreeSet;
use std::path::Path;

use crate::digest::Digest;
use crate::exec::elf::{self, Elf};
use crate::exec::inside::{Found, Inside};
use crate::exec::tools::{FileDigests, ToolError, ToolFile, Tools};

/// What has been found so far.
pub(super) struct Closure<'a> {
    inside: Inside<'a>,
    digests: &'a dyn FileDigests,
    path: String,
    library_path: Vec<String>,
    cache: Option<Vec<(String, String)>>,
    seen: BTreeSet<String>,
    tools: Tools,
    elsewhere: bool,
}

// As many interpreters of interpreters as the kernel follows.
const MAX_SCRIPTS: usize = 5;

impl<'a> Closure<'a> {
    /// Nothing yet. `path` and `library_path` are the step's PATH and LD_LIBRARY_PATH.
    pub(super) fn new(inside: Inside<'a>, digests: &'a dyn FileDigests, path: String, library_path: &str) -> Self {
        let library_path = library_path.split(':').filter(|d| d.starts_with('/')).map(str::to_owned).collect();
        Self {
            inside,
            digests,
            path,
            library_path,
            cache: None,
            seen: BTreeSet::new(),
            tools: Tools::default(),
            elsewhere: false,
        }
    }

    /// What is found will be seen at places of its own: none of the sandbox's hides it.
    pub(super) fn seen_elsewhere(self) -> Self {
        Self { elsewhere: true, ..self }
    }

    fn find(&self, path: &str) -> Result<Option<Found>, ToolError> {
        self.inside.find(path).map_err(|source| ToolError::Io { path: path.to_owned(), source })
    }

    /// The path at which a program's name is found.
    fn look_up(&self, name: &str) -> Result<String, ToolError> {
        if name.contains('/') {
            return Ok(name.to_owned());
        }
        for dir in self.path.split(':').filter(|d| d.starts_with('/')) {
            let path = format!("{dir}/{name}");
            if self.find(&path)?.is_some_and(|f| f.executable) {
                return Ok(path);
            }
        }
        Err(ToolError::NotFound { name: name.to_owned(), path: self.path.clone() })
    }

    /// Takes in the program of this name or path; its path.
    pub(super) fn program(&mut self, name: &str) -> Result<String, ToolError> {
        let path = self.look_up(name)?;
        self.executable(&path, None, 0)?;
        Ok(path)
    }

    /// Takes in a further program, or a library.
    pub(super) fn tool(&mut self, name: &str) -> Result<(), ToolError> {
        let path = self.look_up(name)?;
        let found = self.find(&path)?;
        match found {
            Some(f) if !f.executable => {
                let file = self.take(&f)?;
                match self.elf(&file.host)? {
                    Some(elf) => self.libraries(&f, &elf, &[]),
                    None => Err(ToolError::NotExecutable { path, what: "is neither a program nor a library" }),
                }
            }
            _ => self.executable(&path, None, 0),
        }
    }

    fn executable(&mut self, path: &str, of: Option<&str>, depth: usize) -> Result<(), ToolError> {
        let Some(found) = self.find(path)? else {
            return Err(ToolError::NoFile { path: path.to_owned(), of: of.map(str::to_owned) });
        };
        let cannot = |what| Err(ToolError::NotExecutable { path: path.to_owned(), what });
        if !found.executable {
            return cannot("is not executable");
        }
        let file = self.take(&found)?;
        if !self.seen.insert(found.real.clone()) {
            return Ok(());
        }
        let head = elf::head(&file.host).map_err(|source| ToolError::Io { path: path.to_owned(), source })?;
        if let Some(line) = head.strip_prefix(b"#!") {
            if depth >= MAX_SCRIPTS {
                return cannot("is a script whose interpreter is a script, and so on");
            }
            let end = line.iter().position(|b| *b == b'\n').unwrap_or(line.len());
            let Ok(line) = std::str::from_utf8(&line[..end]) else { return cannot("has a #! line that is not UTF-8") };
            return self.interpreter(line.trim(), path, depth);
        }
        match self.elf(&file.host)? {
            Some(elf) => {
                if let Some(loader) = &elf.interpreter {
                    self.executable(loader, Some(path), depth)?;
                }
                self.libraries(&found, &elf, &[])
            }
            None => cannot("is neither a script with a #! line nor an ELF program"),
        }
    }

    fn interpreter(&mut self, line: &str, script: &str, depth: usize) -> Result<(), ToolError> {
        let mut words = line.split_whitespace();
        let Some(program) = words.next() else {
            return Err(ToolError::NotExecutable { path: script.to_owned(), what: "has an empty #! line" });
        };
        self.executable(program, Some(script), depth + 1)?;
        if program.rsplit('/').next() != Some("env") {
            return Ok(());
        }
        // env looks the program up itself: `env python3`, `env -S python3 -u`, `env A=b python3`.
        let Some(name) = words.find(|w| !w.starts_with('-') && !w.contains('=')) else { return Ok(()) };
        let path = self.look_up(name)?;
        self.executable(&path, Some(script), depth + 1)
    }

    fn elf(&self, host: &Path) -> Result<Option<Elf>, ToolError> {
        elf::read(host).map_err(|source| ToolError::Io { path: host.display().to_string(), source })
    }

    fn libraries(&mut self, of: &Found, elf: &Elf, above: &[String]) -> Result<(), ToolError> {
        let origin = of.real.rfind('/').map_or("", |i| &of.real[..i]).to_owned();
        let expand = |dirs: &[String]| -> Vec<String> {
            dirs.iter().map(|d| d.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin)).collect()
        };
        // RPATH goes for the libraries of libraries too, RUNPATH does not.
        let mut rpath = Vec::new();
        if elf.runpath.is_empty() {
            rpath = expand(&elf.rpath);
            rpath.extend_from_slice(above);
        }
        let runpath = expand(&elf.runpath);
        for name in &elf.needed {
            let dirs: Vec<String> = [&rpath, &self.library_path, &runpath].into_iter().flatten().cloned().collect();
            let found = self.library(name, &dirs, elf)?;
            let Some((found, needs)) = found else {
                return Err(ToolError::NoLibrary { name: name.clone(), of: of.real.clone() });
            };
            self.take(&found)?;
            if self.seen.insert(found.real.clone()) {
                self.libraries(&found, &needs, &rpath)?;
            }
        }
        Ok(())
    }

    fn library(&mut self, name: &str, dirs: &[String], of: &Elf) -> Result<Option<(Found, Elf)>, ToolError> {
        if name.contains('/') {
            return self.fitting(name, of);
        }
        for dir in dirs {
            if let Some(found) = self.fitting(&format!("{dir}/{name}"), of)? {
                return Ok(Some(found));
            }
        }
        let own = own_folders();
        for dir in &own {
            if let Some(found) = self.fitting(&format!("{dir}/{name}"), of)? {
                return Ok(Some(found));
            }
        }
        let cached: Vec<String> = {
            let read = || elf::read_cache(&std::fs::read("/etc/ld.so.cache").unwrap_or_default());
            let cache = self.cache.get_or_insert_with(read);
            cache.iter().filter(|c| c.0 == name).map(|c| c.1.clone()).collect()
        };
        for path in cached {
            if let Some((found, needs)) = self.fitting(&path, of)? {
                // There is no cache inside: a link in a folder of the loader's own leads there.
                if let Some(dir) = own.first() {
                    self.tools.links.insert(format!("{}/{name}", real_folder(dir)), found.real.clone());
                }
                return Ok(Some((found, needs)));
            }
        }
        Ok(None)
    }

    fn fitting(&self, path: &str, of: &Elf) -> Result<Option<(Found, Elf)>, ToolError> {
        let Some(found) = self.find(path)? else { return Ok(None) };
        Ok(self.elf(&found.host)?.filter(|e| e.machine == of.machine).map(|e| (found, e)))
    }

    // Enters a file of the host, and the links that lead to it.
    fn take(&mut self, found: &Found) -> Result<ToolFile, ToolError> {
        self.tools.links.extend(found.links.iter().cloned());
        let io = |source| ToolError::Io { path: found.host.display().to_string(), source };
        if found.of_input {
            // Covered by its input already.
            return Ok(ToolFile { host: found.host.clone(), digest: Digest::of(b""), executable: found.executable });
        }
        let hidden = ["/proc/", "/dev/", "/sys/", "/tmp/", "/out/", "/in/"];
        if !self.elsewhere && hidden.iter().any(|h| found.real.starts_with(h)) {
            return Err(ToolError::Hidden { path: found.real.clone() });
        }
        if let Some(file) = self.tools.files.get(&found.real) {
            return Ok(file.clone());
        }
        let digest = self.digests.digest(&found.host).map_err(io)?;
        let file = ToolFile { host: found.host.clone(), digest, executable: found.executable };
        self.tools.files.insert(found.real.clone(), file.clone());
        Ok(file)
    }

    /// Everything that was found, and what programs rely on without naming it.
    pub(super) fn finish(mut self) -> Result<Tools, ToolError> {
        let names: Vec<String> = self.tools.files.keys().cloned().collect();
        if names.iter().any(|n| n.ends_with("/libc.so.6")) {
            self.locale()?;
        }
        // Where /bin is a link to usr/bin, programs rely on both names.
        for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
            let at = format!("/{name}");
            let Some(target) = std::fs::read_link(&at).ok().and_then(|t| t.to_str().map(str::to_owned)) else {
                continue;
            };
            let folder = format!("/{}/", target.trim_matches('/'));
            let used = self.tools.files.keys().chain(self.tools.links.keys()).any(|f| f.starts_with(&folder));
            if used || self.inside.leads_to_input(folder.trim_end_matches('/')) {
                self.tools.links.insert(at, target);
            }
        }
        Ok(self.tools)
    }

    // glibc keeps even the C.UTF-8 locale in files; without them programs warn and fall back to ASCII.
    fn locale(&mut self) -> Result<(), ToolError> {
        let mut folders = vec!["/usr/lib/locale/C.utf8".to_owned()];
        while let Some(dir) = folders.pop() {
            let Ok(entries) = std::fs::read_dir(&dir) else { continue };
            for entry in entries.flatten() {
                let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
                let path = format!("{dir}/{name}");
                if entry.path().is_dir() {
                    folders.push(path);
                } else if let Some(found) = self.find(&path)? {
                    self.take(&found)?;
                }
            }
        }
        Ok(())
    }
}

// The loader's own folders, on the distributions that we know.
fn own_folders() -> Vec<String> {
    let machine = std::env::consts::ARCH;
    let all = [
        format!("/lib/{machine}-linux-gnu"),
        format!("/usr/lib/{machine}-linux-gnu"),
        "/lib64".to_owned(),
        "/usr/lib64".to_owned(),
        "/lib".to_owned(),
        "/usr/lib".to_owned(),
    ];
    all.into_iter().filter(|d| Path::new(d).is_dir()).collect()
}

fn real_folder(dir: &str) -> String {
    std::fs::canonicalize(dir).ok().and_then(|p| p.to_str().map(str::to_owned)).unwrap_or_else(|| dir.to_owned())
}
