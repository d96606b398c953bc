//! What the containers of steps are labelled with, so that whoever comes later knows whose they are.

use std::collections::BTreeMap;

use crate::host::Process;

/// The unique id of the attempt.
pub const RUN: &str = "graftwerk.run";
/// The node's name.
pub const NODE: &str = "graftwerk.node";
/// The recipe's id.
pub const RECIPE: &str = "graftwerk.recipe";
/// The host of the process that made the container.
pub const HOST: &str = "graftwerk.host";
/// The boot of that host.
pub const BOOT: &str = "graftwerk.boot";
/// That process's number.
pub const PID: &str = "graftwerk.pid";
/// When that process started, in clock ticks since boot.
pub const START: &str = "graftwerk.start";
/// The store's folder.
pub const STORE: &str = "graftwerk.store";
/// The attempt's scratch folder.
pub const SCRATCH: &str = "graftwerk.scratch";
/// The id of the window that is open for the step; only where one is.
pub const WINDOW: &str = "graftwerk.window";

/// What a step's container belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// The unique id of the attempt.
    pub run: String,
    /// The node's name.
    pub node: String,
    /// The recipe's id.
    pub recipe: String,
    /// The store's folder.
    pub store: String,
    /// The attempt's scratch folder.
    pub scratch: String,
    /// The id of the window that is open for the step.
    pub window: Option<String>,
}

impl Owner {
    /// The labels of a container that this process makes for it.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let process = Process::own();
        let mut all: BTreeMap<String, String> = [
            (RUN, self.run.clone()),
            (NODE, self.node.clone()),
            (RECIPE, self.recipe.clone()),
            (STORE, self.store.clone()),
            (SCRATCH, self.scratch.clone()),
            (HOST, process.host),
            (BOOT, process.boot),
            (PID, process.pid.to_string()),
            (START, process.start.to_string()),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v))
        .collect();
        if let Some(id) = &self.window {
            all.insert(WINDOW.to_owned(), id.clone());
        }
        all
    }
}

/// Whether the process that made a container with these labels may still be there: only one of this host that is proven
/// gone is not. Labels that do not say who it was prove nothing.
pub fn owner_alive(labels: &BTreeMap<String, String>) -> bool {
    let of = |key: &str| labels.get(key).cloned();
    let process = || {
        Some(Process { host: of(HOST)?, boot: of(BOOT)?, pid: of(PID)?.parse().ok()?, start: of(START)?.parse().ok()? })
    };
    process().is_none_or(|p| p.alive())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_owner_that_is_proven_gone_is_not_alive() {
        let owner = Owner { run: "r".into(), window: Some("w".into()), ..Owner::default() };
        let mut labels = owner.labels();
        assert_eq!((labels[RUN].as_str(), labels[WINDOW].as_str()), ("r", "w"));
        assert!(owner_alive(&labels));
        labels.insert(START.into(), "1".into());
        assert!(!owner_alive(&labels), "another process has its number");
        labels.insert(HOST.into(), "elsewhere".into());
        assert!(owner_alive(&labels));
        labels.remove(PID);
        labels.remove(HOST);
        assert!(owner_alive(&labels), "nothing says who it was");
    }
}
