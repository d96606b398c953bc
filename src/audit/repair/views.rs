//! Views that a repair can't make again yet: so that a dry run says what the real one comes to.

use std::collections::{HashMap, HashSet};

use crate::audit::repair::{Elsewhere, Outcome, Repair, Way};
use crate::audit::verify::Subject;
use crate::digest::{BlobId, TreeId};
use crate::store::Result;
use crate::store::plain::Plain;

/// How a view ends whose tree has no listing.
pub(super) const WITHOUT_LISTING: &str = "made again when its tree is";

/// Enters for each view that is to be made again whether all that is in it will be there by then.
pub(super) fn foresee(plain: &Plain, all: &mut [Repair], elsewhere: &Elsewhere<'_>) -> Result<()> {
    let mut blobs: HashMap<BlobId, Vec<&Repair>> = HashMap::new();
    let mut listings: HashSet<TreeId> = HashSet::new();
    for r in all.iter() {
        match (&r.subject, &r.way) {
            (Subject::Blob(b, _), _) => blobs.entry(*b).or_default().push(r),
            (Subject::Tree(t), Way::File(_) | Way::View(_)) => drop(listings.insert(*t)),
            _ => {}
        }
    }
    let will_be_there = |blob: BlobId| -> Result<bool> {
        let stored = |x: bool| {
            let damaged = blobs.get(&blob).into_iter().flatten().any(|r| r.subject == Subject::Blob(blob, x));
            elsewhere.survey.blobs.contains_key(&(blob, x)) && !damaged
        };
        let restored = blobs.get(&blob).into_iter().flatten().any(|r| r.outcome == Outcome::Restored);
        Ok(restored || stored(false) || stored(true) || plain.source_of(blob)?.is_some())
    };
    let mut late: Vec<(TreeId, String)> = Vec::new();
    for r in all.iter() {
        let (Subject::View(id), Way::Rest) = (&r.subject, &r.way) else { continue };
        match plain.tree(*id) {
            Ok(Some(tree)) => {
                for (path, blob, ..) in tree.files() {
                    if !will_be_there(blob)? {
                        late.push((
                            *id,
                            format!("not made again yet: the bytes of {path} in it ({blob}) are not there"),
                        ));
                        break;
                    }
                }
            }
            // Where its listing comes back first, nobody knows yet what is in it.
            _ if listings.contains(id) => {}
            _ => late.push((*id, WITHOUT_LISTING.to_owned())),
        }
    }
    for (id, how) in late {
        for r in all.iter_mut().filter(|r| r.subject == Subject::View(id)) {
            r.ended(Outcome::SetAside, how.clone());
        }
    }
    Ok(())
}
