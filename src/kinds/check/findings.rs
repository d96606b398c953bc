//! What a check found, and its report.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use crate::kinds::{Checked, Report};

/// Faults that a line for people shows; report.json holds all of them.
const SHOWN: usize = 40;
/// The same of names that are alike: one of them shows what all of them are.
const FEW: usize = 10;
/// From so many on, the line says first how many there are.
const COUNTED: usize = 10;

/// How what was found is told behind what was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// As faults, each a sentence.
    Faults { shown: usize },
    /// As the value, or the names, in place of those that were expected.
    Instead,
}

/// Assertions in the order in which they were made, and facts. What is asserted is worded so that it can stand behind
/// "expected".
#[derive(Debug, Default)]
pub(super) struct Findings {
    list: Vec<(Checked, Told)>,
    facts: BTreeMap<String, Json>,
}

impl Findings {
    fn push(&mut self, expected: String, ok: bool, found: Vec<String>, told: Told) {
        self.list.push((Checked { assertion: expected, ok, found }, told));
    }

    /// An assertion that holds if there are no faults.
    pub(super) fn add(&mut self, expected: impl Into<String>, faults: Vec<String>) {
        self.push(expected.into(), faults.is_empty(), faults, Told::Faults { shown: SHOWN });
    }

    /// The same for faults that may be as many as there are tensors.
    pub(super) fn add_alike(&mut self, expected: impl Into<String>, faults: Vec<String>) {
        self.push(expected.into(), faults.is_empty(), faults, Told::Faults { shown: FEW });
    }

    /// An assertion that holds unless something else was found instead.
    pub(super) fn instead(&mut self, expected: impl Into<String>, found: impl IntoIterator<Item = String>) {
        let found: Vec<String> = found.into_iter().collect();
        self.push(expected.into(), found.is_empty(), found, Told::Instead);
    }

    /// An assertion that holds, with what was found all the same.
    pub(super) fn holds(&mut self, expected: impl Into<String>, found: Vec<String>) {
        self.push(expected.into(), true, found, Told::Instead);
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
        self.list.iter().all(|(c, _)| c.ok)
    }

    /// The text of report.json. It holds no time and no path of this machine.
    pub(super) fn to_json(&self) -> String {
        let assertions: Vec<&Checked> = self.list.iter().map(|(c, _)| c).collect();
        let report = json!({ "verdict": self.verdict(), "assertions": assertions, "facts": self.facts });
        format!("{report:#}\n")
    }

    /// The report of the run: one line for each assertion that failed.
    pub(super) fn report(self) -> Report {
        let verdict = Some(self.verdict());
        let notes = self.list.iter().filter(|(c, _)| !c.ok).map(|(c, told)| line(c, *told)).collect();
        Report { verdict, notes, facts: self.facts }
    }
}

fn line(c: &Checked, told: Told) -> String {
    let (shown, between) = match told {
        Told::Faults { shown } => (shown, "; "),
        Told::Instead => (FEW, ", "),
    };
    let mut list: Vec<String> = c.found.iter().take(shown).cloned().collect();
    let more = c.found.len().saturating_sub(shown);
    if more > 0 {
        list.push(format!("and {more} more"));
    }
    let (count, list) = (c.found.len(), list.join(between));
    match told {
        Told::Faults { .. } if count >= COUNTED => format!("expected {}: {count} faults: {list}", c.assertion),
        Told::Faults { .. } => format!("expected {}: {list}", c.assertion),
        Told::Instead => format!("expected {}, found {list}", c.assertion),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_was_expected_and_what_was_found() {
        let mut found = Findings::default();
        found.instead("104 tensors", ["178".to_owned()]);
        found.instead("no tensors \"x.*\"", (0..12).map(|i| format!("x.{i}")));
        found.add("a draft head", vec!["there are no tensors mtp.*".to_owned()]);
        found.add_alike("tensors \"*\" of type BF16", (0..11).map(|i| format!("t{i} is F32")).collect());
        found.holds("1 tensor", vec!["fine".to_owned()]);
        let notes = found.report().notes;
        assert_eq!(
            notes,
            [
                "expected 104 tensors, found 178",
                "expected no tensors \"x.*\", found x.0, x.1, x.2, x.3, x.4, x.5, x.6, x.7, x.8, x.9, and 2 more",
                "expected a draft head: there are no tensors mtp.*",
                "expected tensors \"*\" of type BF16: 11 faults: t0 is F32; t1 is F32; t2 is F32; t3 is F32; t4 is F32; t5 is F32; t6 is F32; t7 is F32; t8 is F32; t9 is F32; and 1 more",
            ]
        );
    }
}
