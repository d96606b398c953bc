//! Why a step runs: data, with old and new value, so that whoever prints it can print both.

use serde::{Serialize, Serializer, ser::SerializeMap as _};

use crate::model::recipe::Change;
use crate::plan::difference::differences;

/// A reason for a step to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Nothing of this name, nor of this recipe, was built before.
    NeverBuilt,
    /// A field of the recipe is another one than last time.
    Changed {
        /// The field with both values.
        change: Change,
        /// For an input: the files that differ, `+` added, `-` removed, `~` changed.
        files: Vec<String>,
    },
    /// The recipe was built, but files of its output are nowhere any more.
    OutputMissing {
        /// Their paths.
        paths: Vec<String>,
    },
    /// The recipe was built, and its bytes were freed since.
    Collected {
        /// When, RFC 3339.
        when: String,
    },
    /// The last attempt at this recipe failed.
    LastFailed {
        /// With this error.
        error: String,
    },
    /// It was built, but less isolated than is asked for now.
    WeakerIsolation {
        /// How it was isolated.
        had: String,
    },
    /// The pinned tree is not among its realisations.
    PinMissing {
        /// The pin.
        tree: String,
    },
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::NeverBuilt => f.write_str("never built"),
            Reason::Changed { change, files } => {
                if let (Some(old), Some(new)) = (&change.old, &change.new)
                    && old.len() + new.len() > SHORT
                    && let Some(places) = differences(&change.field.to_string(), old, new)
                {
                    return f.write_str(&first_few(&places));
                }
                write!(f, "{}: ", change.field)?;
                match (&change.old, &change.new) {
                    (Some(old), Some(new)) => write!(f, "{} → {}", shorten(old), shorten(new))?,
                    (None, Some(new)) => write!(f, "added, {}", shorten(new))?,
                    (Some(old), None) => write!(f, "removed, was {}", shorten(old))?,
                    (None, None) => {}
                }
                if !files.is_empty() {
                    write!(f, " ({})", files.join(", "))?;
                }
                Ok(())
            }
            Reason::OutputMissing { paths } => {
                write!(f, "its output is damaged or missing: {}", paths.join(", "))
            }
            Reason::Collected { when } => {
                write!(
                    f,
                    "its bytes were freed by gc at {}Z",
                    when.split('.').next().unwrap_or(when).trim_end_matches('Z')
                )
            }
            Reason::LastFailed { error } => write!(f, "the last attempt failed: {error}"),
            Reason::WeakerIsolation { had } => write!(f, "it was built with weaker isolation ({had})"),
            Reason::PinMissing { tree } => write!(f, "the pinned tree {tree} is not known here"),
        }
    }
}

// Values that are seen whole at a glance, in bytes of both.
const SHORT: usize = 60;
// A line is a line: the rest is in --json.
const MOST_PLACES: usize = 4;

fn first_few(places: &[String]) -> String {
    let shown = places.iter().take(MOST_PLACES).cloned().collect::<Vec<_>>().join("; ");
    match places.len().saturating_sub(MOST_PLACES) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

// Digests are cut to what people compare; the full ones are in --json.
fn shorten(value: &str) -> String {
    match value.strip_prefix("tree b3:").or_else(|| value.strip_prefix("b3:")) {
        Some(hex) if hex.len() == 64 => format!("b3:{}", &hex[..12]),
        _ => value.to_owned(),
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut m = s.serialize_map(None)?;
        match self {
            Reason::NeverBuilt => m.serialize_entry("reason", "never_built")?,
            Reason::Changed { change, files } => {
                m.serialize_entry("reason", "changed")?;
                m.serialize_entry("field", &change.field.to_string())?;
                m.serialize_entry("old", &change.old)?;
                m.serialize_entry("new", &change.new)?;
                if !files.is_empty() {
                    m.serialize_entry("files", files)?;
                }
            }
            Reason::OutputMissing { paths } => {
                m.serialize_entry("reason", "output_missing")?;
                m.serialize_entry("paths", paths)?;
            }
            Reason::Collected { when } => {
                m.serialize_entry("reason", "collected")?;
                m.serialize_entry("when", when)?;
            }
            Reason::LastFailed { error } => {
                m.serialize_entry("reason", "last_failed")?;
                m.serialize_entry("error", error)?;
            }
            Reason::WeakerIsolation { had } => {
                m.serialize_entry("reason", "weaker_isolation")?;
                m.serialize_entry("had", had)?;
            }
            Reason::PinMissing { tree } => {
                m.serialize_entry("reason", "pin_missing")?;
                m.serialize_entry("tree", tree)?;
            }
        }
        m.serialize_entry("text", &self.to_string())?;
        m.end()
    }
}
