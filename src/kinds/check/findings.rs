//! What a check found, and its report.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use crate::kinds::{Checked, Report};

/// Faults that a line for people shows; report.json holds all of them.
const SHOWN: usize = 40;
/// From so many on, the line says first how many there are.
const COUNTED: usize = 10;

/// Assertions in the order in which they were made, and facts.
#[derive(Debug, Default)]
pub(super) struct Findings {
    list: Vec<Checked>,
    facts: BTreeMap<String, Json>,
}

impl Findings {
    /// An assertion that holds if there are no faults.
    pub(super) fn add(&mut self, assertion: impl Into<String>, faults: Vec<String>) {
        self.list.push(Checked { assertion: assertion.into(), ok: faults.is_empty(), found: faults });
    }

    /// An assertion that holds, with what was found all the same.
    pub(super) fn holds(&mut self, assertion: impl Into<String>, found: Vec<String>) {
        self.list.push(Checked { assertion: assertion.into(), ok: true, found });
    }

    /// A fact for the report.
    pub(super) fn fact(&mut self, name: impl Into<String>, value: impl Into<Json>) {
        self.facts.insert(name.into(), value.into());
    }

    /// Whether nothing was asserted.
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn verdict(&self) -> bool {
        self.list.iter().all(|c| c.ok)
    }

    /// The text of report.json. It holds no time and no path of this machine.
    pub(super) fn to_json(&self) -> String {
        let report = json!({ "verdict": self.verdict(), "assertions": self.list, "facts": self.facts });
        format!("{report:#}\n")
    }

    /// The report of the run: one line for each assertion that failed.
    pub(super) fn report(self) -> Report {
        let verdict = Some(self.verdict());
        let notes = self.list.iter().filter(|c| !c.ok).map(line).collect();
        Report { verdict, notes, facts: self.facts }
    }
}

fn line(c: &Checked) -> String {
    let more = c.found.len().saturating_sub(SHOWN);
    let shown: Vec<&str> = c.found.iter().take(SHOWN).map(String::as_str).collect();
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let count = if c.found.len() < COUNTED { String::new() } else { format!("{} faults: ", c.found.len()) };
    format!("{}: {count}{}{more}", c.assertion, shown.join("; "))
}
