//! How far two sequences of numbers lie apart.
//!
//! All sums are in double precision, over blocks that are added up in the order of the data: the same input gives the
//! same digits on every machine and with any number of threads.

use serde::Serialize;

/// Sums over pairs of numbers `a`, `b`, that can be added up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sums {
    /// Pairs seen.
    pub count: u64,
    /// Pairs whose numbers differ; two NaNs do not.
    pub changed: u64,
    /// Pairs where one is infinite or no number: they are in no sum below.
    pub non_finite: u64,
    /// The largest |b − a|.
    pub max: f64,
    /// The pair that has it, counted from 0.
    pub max_at: u64,
    sum: f64,
    dd: f64,
    aa: f64,
    bb: f64,
    ab: f64,
}

/// How far b lies from a.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Statistics {
    /// Elements.
    pub elements: u64,
    /// Share of elements whose values differ, 0 to 1.
    pub changed: f64,
    /// Elements where one side is infinite or no number: left out of what follows.
    #[serde(skip_serializing_if = "is_zero")]
    pub non_finite: u64,
    /// The largest |b − a|.
    pub max_abs: f64,
    /// The element that has it, counted from 0.
    pub max_at: u64,
    /// The mean of |b − a|.
    pub mean_abs: f64,
    /// ‖b − a‖ / ‖a‖; infinite where a is zero and b is not.
    #[serde(serialize_with = "number")]
    pub relative_l2: f64,
    /// a·b / (‖a‖ ‖b‖); 1 where both are zero, 0 where one is.
    pub cosine: f64,
    /// 10 log₁₀(‖a‖² / ‖b − a‖²) in dB; infinite where nothing differs.
    #[serde(serialize_with = "number")]
    pub snr_db: f64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

// JSON has no infinity.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn number<S: serde::Serializer>(n: &f64, s: S) -> Result<S::Ok, S::Error> {
    match n {
        n if n.is_finite() => s.serialize_f64(*n),
        n if *n > 0.0 => s.serialize_str("inf"),
        _ => s.serialize_str("-inf"),
    }
}

impl Default for Sums {
    fn default() -> Self {
        Self { count: 0, changed: 0, non_finite: 0, max: 0.0, max_at: 0, sum: 0.0, dd: 0.0, aa: 0.0, bb: 0.0, ab: 0.0 }
    }
}

/// Elements that are summed before the sums are looked at.
const BLOCK: usize = 1024;
const LANES: usize = 8;

/// A type that widens to double precision without loss.
pub trait Number: Copy + PartialEq + Into<f64> {}
impl Number for f32 {}
impl Number for f64 {}

impl Sums {
    /// Takes in pairs, the next in order.
    pub fn add<T: Number>(&mut self, a: &[T], b: &[T]) {
        for (a, b) in a.chunks(BLOCK).zip(b.chunks(BLOCK)) {
            let block = Self::of_block(a, b);
            // An infinity or a NaN anywhere makes the sum of the squares one.
            let block = if (block.aa + block.bb).is_finite() { block } else { Self::of_odd_block(a, b) };
            self.append(&block);
        }
    }

    /// Takes in pairs of which each is two equal numbers.
    pub fn add_equal<T: Number>(&mut self, a: &[T]) {
        self.add(a, a);
    }

    fn of_block<T: Number>(a: &[T], b: &[T]) -> Self {
        // Lane by lane, so that the compiler may keep them in vector registers.
        let mut changed = [0u32; LANES];
        let (mut max, mut sum) = ([0f64; LANES], [0f64; LANES]);
        let (mut dd, mut aa, mut bb, mut ab) = ([0f64; LANES], [0f64; LANES], [0f64; LANES], [0f64; LANES]);
        let mut one = |lane: usize, x: T, y: T| {
            changed[lane] += u32::from(x != y);
            let (x, y): (f64, f64) = (x.into(), y.into());
            let d = (y - x).abs();
            max[lane] = if d > max[lane] { d } else { max[lane] };
            sum[lane] += d;
            dd[lane] += d * d;
            aa[lane] += x * x;
            bb[lane] += y * y;
            ab[lane] += x * y;
        };
        let (a8, a_rest) = a.as_chunks::<LANES>();
        let (b8, b_rest) = b.as_chunks::<LANES>();
        for (x, y) in a8.iter().zip(b8) {
            for lane in 0..LANES {
                one(lane, x[lane], y[lane]);
            }
        }
        for (lane, (x, y)) in a_rest.iter().zip(b_rest).enumerate() {
            one(lane, *x, *y);
        }
        let largest = max.iter().copied().fold(0.0, f64::max);
        Self {
            count: a.len() as u64,
            changed: changed.iter().map(|c| u64::from(*c)).sum(),
            non_finite: 0,
            max: largest,
            max_at: if largest > 0.0 { position(a, b, largest) } else { 0 },
            sum: sum.iter().sum(),
            dd: dd.iter().sum(),
            aa: aa.iter().sum(),
            bb: bb.iter().sum(),
            ab: ab.iter().sum(),
        }
    }

    fn of_odd_block<T: Number>(a: &[T], b: &[T]) -> Self {
        let mut sums = Self::default();
        for (i, (x, y)) in a.iter().zip(b).enumerate() {
            let (x, y): (f64, f64) = ((*x).into(), (*y).into());
            sums.count += 1;
            sums.changed += u64::from(x != y && !(x.is_nan() && y.is_nan()));
            if !x.is_finite() || !y.is_finite() {
                sums.non_finite += 1;
                continue;
            }
            let d = (y - x).abs();
            if d > sums.max {
                (sums.max, sums.max_at) = (d, i as u64);
            }
            sums.sum += d;
            sums.dd += d * d;
            sums.aa += x * x;
            sums.bb += y * y;
            sums.ab += x * y;
        }
        sums
    }

    /// Takes in the sums of what follows.
    pub fn append(&mut self, next: &Self) {
        if next.max > self.max {
            (self.max, self.max_at) = (next.max, self.count + next.max_at);
        }
        self.count += next.count;
        self.changed += next.changed;
        self.non_finite += next.non_finite;
        self.sum += next.sum;
        self.dd += next.dd;
        self.aa += next.aa;
        self.bb += next.bb;
        self.ab += next.ab;
    }

    /// What they say.
    #[allow(clippy::cast_precision_loss, reason = "counts of elements stay far below 2^53")]
    pub fn statistics(&self) -> Statistics {
        let share = |n: u64, of: u64| if of == 0 { 0.0 } else { n as f64 / of as f64 };
        let finite = self.count - self.non_finite;
        let norms = (self.aa * self.bb).sqrt();
        let relative = |top: f64, bottom: f64| match (top == 0.0, bottom == 0.0) {
            (true, _) => 0.0,
            (false, true) => f64::INFINITY,
            (false, false) => top / bottom,
        };
        let ratio = relative(self.dd, self.aa);
        Statistics {
            elements: self.count,
            changed: share(self.changed, self.count),
            non_finite: self.non_finite,
            max_abs: self.max,
            max_at: self.max_at,
            mean_abs: if finite == 0 { 0.0 } else { self.sum / finite as f64 },
            relative_l2: ratio.sqrt(),
            cosine: match (self.aa == 0.0, self.bb == 0.0) {
                (true, true) => 1.0,
                (false, false) if norms > 0.0 => (self.ab / norms).clamp(-1.0, 1.0),
                _ => 0.0,
            },
            snr_db: if ratio == 0.0 { f64::INFINITY } else { -10.0 * ratio.log10() },
        }
    }
}

fn position<T: Number>(a: &[T], b: &[T], largest: f64) -> u64 {
    let has = |(x, y): (&T, &T)| (Into::<f64>::into(*y) - Into::<f64>::into(*x)).abs() == largest;
    a.iter().zip(b).position(has).unwrap_or(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(a: &[f32], b: &[f32]) -> Statistics {
        let mut sums = Sums::default();
        sums.add(a, b);
        sums.statistics()
    }

    #[test]
    fn the_figures_are_those_of_the_definitions() {
        let s = of(&[1.0, 2.0, 2.0], &[1.0, 2.0, 5.0]);
        assert_eq!((s.elements, s.max_abs, s.max_at), (3, 3.0, 2));
        assert!((s.changed - 1.0 / 3.0).abs() < 1e-15);
        assert!((s.mean_abs - 1.0).abs() < 1e-15);
        assert!((s.relative_l2 - 1.0).abs() < 1e-15, "3 / 3");
        assert!((s.cosine - 15.0 / (3.0 * 30f64.sqrt())).abs() < 1e-15);
        assert!(s.snr_db.abs() < 1e-12);
    }

    #[test]
    fn equal_sides_have_no_distance_and_zeros_are_told_apart_from_nothing() {
        let s = of(&[1.0, -2.0], &[1.0, -2.0]);
        assert_eq!((s.changed, s.max_abs, s.relative_l2, s.cosine, s.snr_db), (0.0, 0.0, 0.0, 1.0, f64::INFINITY));
        let s = of(&[0.0, 0.0], &[0.0, 0.0]);
        assert_eq!((s.relative_l2, s.cosine), (0.0, 1.0));
        let s = of(&[0.0, 0.0], &[1.0, 0.0]);
        assert_eq!((s.relative_l2, s.cosine, s.snr_db), (f64::INFINITY, 0.0, f64::NEG_INFINITY));
        let text = serde_json::to_string(&s).unwrap();
        assert!(text.contains("\"relative_l2\":\"inf\"") && text.contains("\"snr_db\":\"-inf\""), "{text}");
        assert_eq!(of(&[], &[]).elements, 0);
    }

    #[test]
    fn what_is_no_number_is_counted_and_left_out() {
        let mut a: Vec<f32> = (0..5000).map(|i| i as f32).collect();
        let mut b = a.clone();
        (a[10], b[10]) = (f32::NAN, f32::NAN);
        (a[4000], b[4000]) = (1.0, f32::INFINITY);
        b[4500] += 8.0;
        let s = of(&a, &b);
        assert_eq!((s.non_finite, s.max_abs, s.max_at), (2, 8.0, 4500));
        assert!((s.changed - 2.0 / 5000.0).abs() < 1e-15, "two NaNs are no change");
        assert!(s.relative_l2.is_finite() && s.cosine <= 1.0);
    }

    #[test]
    fn however_the_data_are_cut_the_place_of_the_largest_is_right() {
        let a = vec![0f64; 10_000];
        let mut b = a.clone();
        (b[7], b[9_123]) = (1.0, -2.0);
        let mut whole = Sums::default();
        whole.add(&a, &b);
        let mut parts = Sums::default();
        for (x, y) in a.chunks(2048).zip(b.chunks(2048)) {
            let mut part = Sums::default();
            part.add(x, y);
            parts.append(&part);
        }
        assert_eq!(whole, parts);
        assert_eq!((parts.max, parts.max_at), (2.0, 9_123));
    }
}
