//! Pictures of series over time: areas, lines, stacks, axes.
//!
//! Shapes are drawn into a box of 1000 × 100 that the page stretches; texts are
//! put beside them by percentages, so that they stay sharp at every width.

use std::fmt::Write;

/// Width of the box.
pub const WIDTH: f64 = 1000.0;
/// Height of the box.
pub const HEIGHT: f64 = 100.0;
/// Points drawn per series: one for each four pixels of the page's width.
const POINTS_DRAWN: usize = 260;

/// The beginning of a picture of this box.
pub fn open(label: &str) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{label}\">")
}

/// Largest value, at least a little above zero.
pub fn maximum<'a>(series: impl IntoIterator<Item = &'a [f32]>) -> f64 {
    let values = series.into_iter().flatten().copied().filter(|value| value.is_finite());
    f64::from(values.fold(0.0_f32, f32::max)).max(1.0)
}

/// A series with few enough points, each the mean of those it stands for.
pub fn thinned(values: &[f32]) -> Vec<f64> {
    let size = values.len().div_ceil(POINTS_DRAWN).max(1);
    values
        .chunks(size)
        .map(|chunk| {
            let sum: f64 = chunk.iter().map(|value| if value.is_finite() { f64::from(*value) } else { 0.0 }).sum();
            sum / chunk.len() as f64
        })
        .collect()
}

/// Each value replaced by the mean of it and two on either side.
pub fn smoothed(values: &[f64]) -> Vec<f64> {
    (0..values.len())
        .map(|i| {
            let around = &values[i.saturating_sub(2)..(i + 3).min(values.len())];
            around.iter().sum::<f64>() / around.len() as f64
        })
        .collect()
}

/// The points of a series as path commands, the last value held to the right edge.
fn points(values: &[f64], maximum: f64) -> String {
    let mut path = String::new();
    let step = WIDTH / values.len().max(1) as f64;
    let mut last = None;
    for (i, value) in values.iter().enumerate() {
        let y = HEIGHT - (value / maximum).clamp(0.0, 1.0) * HEIGHT;
        // A level stretch is one line.
        let next = values.get(i + 1).map(|next| HEIGHT - (next / maximum).clamp(0.0, 1.0) * HEIGHT);
        if last == Some(y) && next == Some(y) {
            continue;
        }
        last = Some(y);
        let x = (i as f64 + 0.5) * step;
        let _ = write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { "" } else { "L" });
    }
    path
}

/// A filled area below a series.
pub fn area(class: &str, values: &[f64], maximum: f64) -> String {
    if values.is_empty() {
        return String::new();
    }
    format!("<path class=\"{class}\" d=\"M0 {HEIGHT}L{}L{WIDTH} {HEIGHT}Z\"/>", points(values, maximum))
}

/// A line along a series.
pub fn line(class: &str, values: &[f64], maximum: f64) -> String {
    if values.is_empty() {
        return String::new();
    }
    format!("<path class=\"{class}\" d=\"M{}\"/>", points(values, maximum))
}

/// Series on top of each other, each a share; the first is lowest.
pub fn stack(layers: &[(&str, Vec<f64>)]) -> String {
    let mut svg = String::new();
    let mut sums: Vec<Vec<f64>> = Vec::new();
    for (_, values) in layers {
        let below = sums.last();
        let sum = values.iter().enumerate().map(|(i, value)| {
            let below = below.and_then(|below| below.get(i)).copied().unwrap_or(0.0);
            (below + value).min(1.0)
        });
        sums.push(sum.collect());
    }
    // Drawn from the highest down, so that each covers the one above it.
    for ((class, _), sum) in layers.iter().zip(&sums).rev() {
        svg.push_str(&area(class, sum, 1.0));
    }
    svg
}

/// A horizontal line at a value.
pub fn level(class: &str, value: f64, maximum: f64) -> String {
    let y = HEIGHT - (value / maximum).clamp(0.0, 1.0) * HEIGHT;
    format!("<path class=\"{class}\" d=\"M0 {y:.1}H{WIDTH}\"/>")
}

/// Boxes of equal values next to each other, as opaque as the value is large.
pub fn heat(values: &[u16]) -> String {
    let maximum = values.iter().copied().max().unwrap_or(0).max(1);
    let step = WIDTH / values.len().max(1) as f64;
    let mut svg = String::new();
    let mut start = 0;
    while let Some(value) = values.get(start) {
        let length = values[start..].iter().take_while(|other| *other == value).count();
        if *value > 0 {
            let opacity = 0.15 + 0.5 * f64::from(*value) / f64::from(maximum);
            let (x, width) = (start as f64 * step, length as f64 * step);
            let _ = write!(
                svg,
                "<rect x=\"{x:.1}\" width=\"{width:.1}\" height=\"{HEIGHT}\" fill-opacity=\"{opacity:.2}\"><title>{value} \
                 connections</title></rect>"
            );
        }
        start += length;
    }
    svg
}

/// Round values from 0 up to at most the maximum, three to six of them.
pub fn ticks(maximum: f64) -> Vec<f64> {
    let power = 10_f64.powf(maximum.max(1e-9).log10().floor());
    let step = [0.2, 0.25, 0.5, 1.0, 2.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| maximum / step < 6.0)
        .unwrap_or(power);
    (0..=6).map(|i| f64::from(i) * step).filter(|tick| *tick <= maximum * 1.0001).collect()
}

/// Round times for the axis below, in milliseconds.
pub fn time_ticks(duration_ms: u64) -> Vec<u64> {
    const STEPS_MS: [u64; 21] = [
        100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000,
        1_800_000, 3_600_000, 7_200_000, 14_400_000, 21_600_000, 43_200_000, 86_400_000,
    ];
    let step = STEPS_MS.into_iter().find(|step| duration_ms / step <= 8).unwrap_or(duration_ms / 8 + 1);
    (0..=9_u64).map(|i| i.saturating_mul(step)).filter(|tick| *tick <= duration_ms).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(118e6), [0.0, 20e6, 40e6, 60e6, 80e6, 100e6]);
        assert_eq!(ticks(1.0).len(), 6);
        assert_eq!(time_ticks(121_400), [0, 15_000, 30_000, 45_000, 60_000, 75_000, 90_000, 105_000, 120_000]);
        assert_eq!(time_ticks(0), [0]);
    }

    #[test]
    fn a_level_stretch_is_one_line() {
        assert_eq!(line("x", &[5.0; 300], 10.0), "<path class=\"x\" d=\"M1.7 50.0L998.3 50.0\"/>");
    }

    proptest! {
        #[test]
        fn axes_are_short(maximum in 0.0_f64..1e18, duration_ms in any::<u64>()) {
            prop_assert!(ticks(maximum).len() <= 7);
            prop_assert!(time_ticks(duration_ms).len() <= 10);
        }

        #[test]
        fn coordinates_stay_in_the_box(values in proptest::collection::vec(any::<f32>(), 0..900)) {
            let svg = area("x", &thinned(&values), maximum([values.as_slice()]));
            for number in svg.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-')).filter(|n| !n.is_empty()) {
                let number: f64 = number.parse().unwrap();
                prop_assert!((0.0..=1000.0).contains(&number), "{svg}");
            }
        }
    }
}
