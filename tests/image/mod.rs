//! A small image for container tests, and what they ask the engine.
#![allow(dead_code, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Whether these tests are left out here.
pub fn skipped() -> bool {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|v| v == value);
    is("GRAFTWERK_SKIP_DOCKER", "1") && !is("CI", "true")
}

/// What the client prints; it must succeed.
pub fn docker(args: &[&str]) -> String {
    let o = Command::new("docker").args(args).output().expect("docker is needed");
    assert!(o.status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&o.stderr));
    String::from_utf8_lossy(&o.stdout).into_owned()
}

/// The ids of the containers of this project's steps.
pub fn containers(project: &Path) -> String {
    let label = format!("label=graftwerk.store={}", project.join("store").display());
    docker(&["ps", "-aq", "--no-trunc", "--filter", &label])
}

/// Waits until it is so; a minute is far too long.
pub fn until(so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never came to that");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An image with busybox under every name, gone with this.
pub struct Image {
    /// Its name.
    pub name: String,
    root: Option<tempfile::TempDir>,
}

impl Image {
    /// A new one under a name of its own, with the variable `OF_IMAGE=yes`.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("graftwerk-test-{}:{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        fs::create_dir_all(&bin).unwrap();
        for dir in ["etc", "tmp"] {
            fs::create_dir(root.path().join(dir)).unwrap();
        }
        fs::write(root.path().join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").unwrap();
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|p| Path::new(p).exists());
        let busybox = busybox.expect("busybox-static is needed");
        fs::copy(busybox, bin.join("busybox")).unwrap();
        let listed = Command::new(busybox).arg("--list").output().unwrap();
        for applet in String::from_utf8_lossy(&listed.stdout).lines().filter(|a| *a != "busybox") {
            symlink("busybox", bin.join(applet)).unwrap();
        }
        let image = Self { name, root: Some(root) };
        image.import("yes");
        image
    }

    /// Another name for an image that is there.
    pub fn named(id: &str) -> Self {
        let name = format!("graftwerk-test-kept-{}", std::process::id());
        docker(&["tag", id, &name]);
        Self { name, root: None }
    }

    /// Imports it again, with another value of its variable: it gets another id.
    pub fn import(&self, variable: &str) {
        let root = self.root.as_ref().unwrap().path();
        let mut tar = Command::new("tar")
            .args(["--sort=name", "--mtime=@1", "--owner=0", "--group=0", "-C"])
            .arg(root)
            .args(["-c", "."])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (path, of_image) = ("ENV PATH=/bin", format!("ENV OF_IMAGE={variable}"));
        let o = Command::new("docker")
            .args(["import", "-c", path, "-c", &of_image, "-", &self.name])
            .stdin(tar.stdout.take().unwrap())
            .output()
            .unwrap();
        assert!(tar.wait().unwrap().success());
        assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
    }

    /// The engine's id for it.
    pub fn id(&self) -> String {
        docker(&["image", "inspect", "-f", "{{.Id}}", &self.name]).trim().to_owned()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rmi", "-f", &self.name]).output();
    }
}

/// The engine's socket for everybody, as if they all were in its group: a relay of a few lines.
pub struct Socket {
    dir: tempfile::TempDir,
}

impl Socket {
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("engine.sock")
    }
}

/// Opens such a socket.
pub fn open_socket() -> Socket {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = Socket { dir };
    let listener = UnixListener::bind(socket.path()).unwrap();
    fs::set_permissions(socket.path(), fs::Permissions::from_mode(0o777)).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else { return };
            let engine = UnixStream::connect("/var/run/docker.sock").unwrap();
            let pump = |mut from: UnixStream, mut to: UnixStream| {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                })
            };
            pump(client.try_clone().unwrap(), engine.try_clone().unwrap());
            pump(engine, client);
        }
    });
    socket
}

/// An engine of its own in another mount namespace, which does not see this machine's temporary files.
pub struct FarEngine {
    dir: tempfile::TempDir,
    child: std::process::Child,
    port: u16,
}

impl FarEngine {
    /// Starts one.
    pub fn start() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = dir.path().display();
        fs::write(dir.path().join("config"), "{}").unwrap();
        // Its own /tmp hides ours.
        let script = format!(
            "mount -t tmpfs none /tmp && exec dockerd --config-file {at}/config --storage-driver vfs --iptables=false --ip6tables=false --bridge=none --data-root {at}/data \
             --exec-root {at}/exec --pidfile {at}/pid -H tcp://127.0.0.1:{port} >{at}/log 2>&1"
        );
        let child = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c", &script])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let far = Self { dir, child, port };
        let begun = Instant::now();
        while !far.docker(&["version"]).status.success() {
            let log = fs::read_to_string(far.dir.path().join("log")).unwrap_or_default();
            assert!(begun.elapsed() < Duration::from_secs(60), "{log}");
            std::thread::sleep(Duration::from_millis(200));
        }
        far
    }

    pub fn address(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    fn docker(&self, args: &[&str]) -> std::process::Output {
        Command::new("docker").arg("-H").arg(self.address()).args(args).output().unwrap()
    }

    /// Gives it an image.
    pub fn load(&self, image: &Image) {
        let file = self.dir.path().join("image.tar");
        docker(&["save", "-o", file.to_str().unwrap(), &image.name]);
        let loaded = self.docker(&["load", "-i", file.to_str().unwrap()]);
        assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
    }
}

impl Drop for FarEngine {
    fn drop(&mut self) {
        if let Ok(pid) = fs::read_to_string(self.dir.path().join("pid")) {
            let _ = Command::new("kill").arg(pid.trim()).status();
        }
        let _ = self.child.wait();
    }
}
