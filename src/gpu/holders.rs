//! Who a process is that holds memory: its program, and the container that it runs in.

/// The program's name; `None` where the process can't be seen from here.
pub(super) fn name(pid: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|s| s.trim().to_owned()).filter(|s| !s.is_empty())
}

/// The id of the container that the process runs in; `None` where it runs in none, or that can't be told.
pub(super) fn container(pid: u32) -> Option<String> {
    in_cgroups(&std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

// Engines name a container's control group after its id: `/docker/ID`, `docker-ID.scope`, `libpod-ID.scope`,
// `cri-containerd-ID.scope`.
fn in_cgroups(text: &str) -> Option<String> {
    let is_id = |s: &str| s.len() == 64 && s.bytes().all(|b| b.is_ascii_hexdigit());
    text.lines().filter_map(|l| l.splitn(3, ':').nth(2)).flat_map(|path| path.rsplit('/')).find_map(|part| {
        let part = part.strip_suffix(".scope").unwrap_or(part);
        let id = part.rsplit('-').next()?;
        is_id(id).then(|| id.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_read_from_the_control_groups_of_every_engine() {
        let id = "0123456789abcdef".repeat(4);
        for line in [
            format!("0::/system.slice/docker-{id}.scope"),
            format!("12:memory:/docker/{id}\n0::/"),
            format!("0::/machine.slice/libpod-{id}.scope/container"),
            format!("0::/kubepods.slice/pod1/cri-containerd-{id}.scope"),
        ] {
            assert_eq!(in_cgroups(&line).as_deref(), Some(id.as_str()), "{line}");
        }
        assert_eq!(in_cgroups("0::/user.slice/user-1000.slice/session-2.scope"), None);
        assert!(name(std::process::id()).is_some());
    }
}
