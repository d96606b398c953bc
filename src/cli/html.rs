//! The report of a diff as one file for a browser: nothing is loaded from elsewhere.

use std::io::Write as _;
use std::path::Path;

use serde::Serialize;

use crate::front::FrontError;
use crate::fsx::Placed;
use crate::fsx::part::{Begun, Part};

const PAGE: &str = include_str!("assets/diff.html");
const PLACE: &str = "@REPORT@";

/// The page with a report in it. `<` is escaped: a name in the report can't end the script that holds it.
fn page(report: &impl Serialize) -> Result<String, serde_json::Error> {
    let json = serde_json::to_string(report)?.replace('<', "\\u003c");
    let (before, after) = PAGE.split_once(PLACE).unwrap_or((PAGE, ""));
    Ok([before, &json, after].concat())
}

/// Writes the page to a new file. Errors: Argument where there is something already, or it can't be written; then
/// nothing is left half made.
pub(crate) fn write(report: &impl Serialize, to: &Path) -> Result<(), FrontError> {
    let failed = |what: String| FrontError::Argument {
        what: format!("cannot write {}: {what}", to.display()),
        hint: Some("name a file that is not there yet, in a folder that is".to_owned()),
    };
    let there = || failed("there is something already, or it is being made".to_owned());
    let text = page(report).map_err(|e| failed(e.to_string()))?;
    let Begun::Part(mut part) = Part::file(to).map_err(|e| failed(e.to_string()))? else { return Err(there()) };
    part.write_all(text.as_bytes()).map_err(|e| failed(e.to_string()))?;
    match part.finish().map_err(|e| failed(e.to_string()))? {
        Placed::Placed => Ok(()),
        Placed::Existed => Err(there()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_the_report_cannot_end_its_script() {
        let page = page(&serde_json::json!({"name": "</script><script>alert(1)</script>"})).unwrap();
        assert!(page.contains("\\u003c/script>") && !page.contains("alert(1)</script>"));
        assert!(!page.contains(PLACE));
        for outside in ["http://", "https://", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn what_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("report.html");
        write(&serde_json::json!({}), &to).unwrap();
        let first = std::fs::read(&to).unwrap();
        assert!(write(&serde_json::json!({"b": 1}), &to).is_err());
        assert_eq!(std::fs::read(&to).unwrap(), first);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(write(&serde_json::json!({}), &dir.path().join("none/report.html")).is_err());
    }
}
