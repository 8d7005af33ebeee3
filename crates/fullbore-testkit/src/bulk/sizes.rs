//! Sizes as Debian 12's main has them: a row for each package, of which an archive takes a part of the same shape.

use std::io::Read as _;

use super::items::{DEB_BYTES_MIN, FILE_BYTES_MIN, Names, Package, Parts};
use crate::random::Random;

/// Bytes of a stanza, and for each file the end of its name and its bytes.
const SOURCES: &[u8] = include_bytes!("sizes-source.csv.gz");
/// Architecture, bytes, installed size in KiB, bytes of the stanza.
const BINARIES: &[u8] = include_bytes!("sizes-binary.csv.gz");
/// The least and the greatest size make a scale not quite linear: so often is it corrected.
const SCALINGS: usize = 8;

fn rows(packed: &[u8]) -> Vec<Vec<String>> {
    let mut text = String::new();
    let read = flate2::read::GzDecoder::new(packed).read_to_string(&mut text);
    read.expect("the table is a part of this program");
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().ok().expect("the table is a part of this program")
}

/// So many rows, one from each part of all rows by size: the shape of the distribution, its tail included.
fn spread<T: Clone>(mut rows: Vec<T>, size: impl Fn(&T) -> u64, count: usize, random: &mut Random) -> Vec<T> {
    rows.sort_by_key(size);
    let of = |place: usize, random: &mut Random| {
        ((place as f64 + random.unit()) * rows.len() as f64 / count as f64) as usize
    };
    (0..count).map(|place| rows[of(place, random).min(rows.len() - 1)].clone()).collect()
}

/// The factor by which sizes come to a sum; `size` is one within its bounds, for a factor.
fn factor(bytes: Option<u64>, sum: impl Fn(f64) -> u64) -> f64 {
    let mut factor = 1.0;
    for _ in 0..SCALINGS {
        let Some(bytes) = bytes else { break };
        factor *= bytes as f64 / sum(factor).max(1) as f64;
    }
    factor
}

fn scaled(size: u64, factor: f64, least: u64, most: u64) -> u64 {
    ((size as f64 * factor) as u64).max(least).min(most)
}

/// These describe a package, and do not grow with it.
fn is_fixed(end: &str) -> bool {
    end.ends_with(".dsc") || end.ends_with(".asc")
}

/// Source packages with about so many files.
pub(super) fn sources(
    files: usize,
    bytes: Option<u64>,
    most: u64,
    names: &mut Names,
    random: &mut Random,
) -> Vec<Package> {
    type Row = (usize, Vec<(String, u64)>);
    let read = |row: Vec<String>| -> Row {
        let parts = row[1..].iter().filter_map(|part| part.split_once('='));
        (number(&row[0]), parts.map(|(end, size)| (end.to_owned(), number(size))).collect())
    };
    let rows: Vec<Row> = rows(SOURCES).into_iter().map(read).collect();
    let per_package = rows.iter().map(|(_, files)| files.len()).sum::<usize>() as f64 / rows.len() as f64;
    let count = ((files as f64 / per_package).round() as usize).max(1);
    let mut picked = spread(rows, |(_, files)| files.iter().map(|(_, size)| size).sum(), count, random);
    let size = |end: &str, size: u64, factor: f64| {
        if is_fixed(end) { size } else { scaled(size, factor, FILE_BYTES_MIN, most) }
    };
    let all = || picked.iter().flat_map(|(_, files)| files);
    let factor = factor(bytes, |factor| all().map(|(end, bytes)| size(end, *bytes, factor)).sum());
    for (end, bytes) in picked.iter_mut().flat_map(|(_, files)| files) {
        *bytes = size(end, *bytes, factor);
    }
    let package =
        |(stanza_bytes, files)| Package::new(names.new_name(random), Parts::Source(files), stanza_bytes, random);
    picked.into_iter().map(package).collect()
}

/// So many binary packages.
pub(super) fn binaries(
    count: usize,
    bytes: Option<u64>,
    most: u64,
    names: &mut Names,
    random: &mut Random,
) -> Vec<Package> {
    let rows: Vec<(String, u64, u64, usize)> = rows(BINARIES)
        .into_iter()
        .map(|row| (row[0].clone(), number(&row[1]), number(&row[2]), number(&row[3])))
        .collect();
    let picked = spread(rows, |row| row.1, count.max(1), random);
    let size = |size: u64, factor: f64| scaled(size, factor, DEB_BYTES_MIN, most);
    let factor = factor(bytes, |factor| picked.iter().map(|row| size(row.1, factor)).sum());
    let package = |(architecture, bytes, installed_kib, stanza_bytes)| {
        let parts = Parts::Binary { architecture, bytes: size(bytes, factor), installed_kib };
        Package::new(names.new_name(random), parts, stanza_bytes, random)
    };
    picked.into_iter().map(package).collect()
}
