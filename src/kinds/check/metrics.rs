//! Numbers in JSON files, held against bounds.

use super::config::document;
use super::findings::Findings;
use super::spec::Metric;
use crate::kinds::{Input, StepError};

/// Asserts the bounds of each number. Errors: a file that is no JSON.
pub(super) fn assert(alias: &str, files: &[Metric], input: &Input, found: &mut Findings) -> Result<(), StepError> {
    for (file, pointer, bounds) in files {
        let bound = |word: &str, b: Option<f64>| b.map(|b| format!(" {word} {}", crate::canon::float(b)));
        let wanted = [bound("at least", bounds.min), bound("at most", bounds.max)].into_iter().flatten();
        let assertion = format!("{file}{pointer} of `{alias}` to be{}", wanted.collect::<Vec<_>>().join(" and"));
        let fault = match document(input, file)? {
            None => Some("no such file".to_owned()),
            Some(doc) => match doc.get(pointer) {
                None => Some("nothing there".to_owned()),
                // Not from the parsed value: its NaN would be null.
                Some(raw) => match raw.parse::<f64>() {
                    Err(_) => Some(format!("{raw}, which is no number")),
                    Ok(x) => {
                        let fits = bounds.min.is_none_or(|b| x >= b) && bounds.max.is_none_or(|b| x <= b);
                        (!fits).then(|| raw.to_owned())
                    }
                },
            },
        };
        found.instead(assertion, fault);
    }
    Ok(())
}
