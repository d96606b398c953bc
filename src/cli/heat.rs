//! A strip for each module of a stack of layers: how far its weights lie apart, layer by layer.

use std::collections::{BTreeMap, BTreeSet};

use crate::cli::terminal::{Stream, Tone};
use crate::cli::words;
use crate::diff::TensorsDiff;
use crate::diff::place::Place;

const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Below the modules that differ most, others are counted.
const MODULES: usize = 12;
/// A layer more than this, and several share a column.
const COLUMNS: u64 = 96;

/// How far apart a weight's two sides are, 0 to 1: half of the decades between 10⁻⁶ and 1, so that small changes show.
pub(crate) fn heat(relative_l2: f64) -> f64 {
    if relative_l2 <= 0.0 { 0.0 } else { ((relative_l2.log10() + 6.0) / 6.0).clamp(0.0, 1.0) }
}

/// The strips, where weights in layers changed. A dot is a layer where the module did not change.
pub(crate) fn strips(diff: &TensorsDiff, out: Stream) -> String {
    let mut stacks: BTreeMap<String, BTreeMap<String, BTreeMap<u64, f64>>> = BTreeMap::new();
    for c in &diff.changed {
        let place = Place::of(&c.name);
        let Some(layer) = place.layer else { continue };
        let heat = c.statistics.map_or(1.0, |s| heat(s.relative_l2));
        let layers = stacks.entry(place.stack).or_default().entry(place.module).or_default();
        let known = layers.entry(layer).or_insert(0.0);
        *known = known.max(heat);
    }
    let mut s = String::new();
    for (stack, modules) in stacks {
        let layers: BTreeSet<u64> = modules.values().flat_map(|m| m.keys().copied()).collect();
        let (Some(first), Some(last)) = (layers.first(), layers.last()) else { continue };
        // One layer is no strip.
        if first == last {
            continue;
        }
        let (from, a_column) = (0, (last / COLUMNS) + 1);
        let columns = last / a_column + 1;
        let title = match a_column {
            1 => format!("  {} 0 to {last}", words::plain(&stack)),
            n => format!("  {} 0 to {last}, {n} layers a column", words::plain(&stack)),
        };
        s.push_str(&out.paint(Tone::Quiet, &format!("{title}: ▁ a millionth, █ all of it, · nothing")));
        s.push('\n');
        let mut worst: Vec<(&String, &BTreeMap<u64, f64>)> = modules.iter().collect();
        let top = |m: &BTreeMap<u64, f64>| m.values().copied().fold(0.0, f64::max);
        worst.sort_by(|x, y| top(y.1).total_cmp(&top(x.1)).then(x.0.cmp(y.0)));
        let width = worst.iter().take(MODULES).map(|(m, _)| m.chars().count()).max().unwrap_or(0);
        for (module, layers) in worst.iter().take(MODULES) {
            let strip: String = (from..columns)
                .map(|c| {
                    let heats = layers.range(c * a_column..(c + 1) * a_column).map(|(_, h)| *h);
                    heats.reduce(f64::max).map_or('·', step)
                })
                .collect();
            s.push_str(&format!("    {module:<width$}  {strip}\n"));
        }
        if worst.len() > MODULES {
            s.push_str(&format!("    and {} more modules\n", worst.len() - MODULES));
        }
    }
    s
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 7, and casts saturate")]
fn step(heat: f64) -> char {
    STEPS[((heat * 8.0) as usize).min(7)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_millionth_is_low_and_everything_is_high() {
        assert_eq!(
            [0.0, 1e-9, 1e-6, 1e-3, 0.1, 1.0, f64::INFINITY].map(|x| step(heat(x))),
            ['▁', '▁', '▁', '▅', '▇', '█', '█']
        );
    }
}
