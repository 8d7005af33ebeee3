//! Makes a large signed archive for benchmarks, in several states.
//!
//!     fullbore-archive OUT [--kind source|binary|both] [--files N] [--bytes 2G] [--max-file 50M]
//!                      [--states N] [--churn SHARE] [--seed N] [--suite NAME]
//!                      [--no-pool] [--no-contents] [--no-pdiffs] [--merged] [--installable] [--lines]

use std::process::ExitCode;

use fullbore_testkit::bulk::{self, Content, Kind, Settings};

const USAGE: &str =
    "usage: fullbore-archive OUT [--kind source|binary|both] [--files N] [--bytes SIZE] [--max-file SIZE]
       [--states N] [--churn SHARE] [--seed N] [--suite NAME]
       [--no-pool] [--no-contents] [--no-pdiffs] [--merged] [--installable] [--lines]
SIZE is in bytes, or ends with k, M, G or T (powers of 1000).
--no-pool makes indexes alone, with invented hashes; --lines files that pack well instead of random bytes.";

fn main() -> ExitCode {
    let settings = match settings(std::env::args().skip(1)) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("fullbore-archive: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match bulk::make(&settings) {
        Ok(states) => {
            for (number, made) in states.iter().enumerate() {
                println!("T{number}: {} files, {} bytes, {} files are new", made.files, made.bytes, made.new_files);
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("fullbore-archive: {error}");
            ExitCode::FAILURE
        }
    }
}

fn settings(mut words: impl Iterator<Item = String>) -> Result<Settings, String> {
    let out = words.next().filter(|word| !word.starts_with('-')).ok_or("no OUT")?;
    let mut settings = Settings::new(out);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{word} {text}: not a number"));
        match word.as_str() {
            "--kind" => {
                settings.kind = match value()?.as_str() {
                    "source" => Kind::Source,
                    "binary" => Kind::Binary,
                    "both" => Kind::Both,
                    other => return Err(format!("--kind {other}: no such kind")),
                }
            }
            "--files" => settings.files = number(value()?)? as usize,
            "--bytes" => settings.bytes = Some(size(&value()?)?).filter(|bytes| *bytes > 0),
            "--max-file" => settings.largest_file_bytes = size(&value()?)?,
            "--states" => settings.states = number(value()?)? as usize,
            "--churn" => settings.churn = value()?.parse().map_err(|_| "--churn: not a number")?,
            "--seed" => settings.seed = number(value()?)?,
            "--suite" => settings.suite = value()?,
            "--no-pool" => settings.content = Content::None,
            "--lines" => settings.content = Content::Lines,
            "--no-contents" => settings.contents = false,
            "--no-pdiffs" => settings.pdiffs = false,
            "--merged" => settings.merged = true,
            "--installable" => settings.installable = true,
            _ => return Err(format!("{word}: no such option")),
        }
    }
    Ok(settings)
}

/// `2G`, `2400k`, `1.5M`, `700`.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text}: not a size");
    let (digits, power) = match text.trim_end_matches('B') {
        text if text.ends_with(['k', 'M', 'G', 'T']) => {
            let (digits, unit) = text.split_at(text.len() - 1);
            (digits, "kMGT".find(unit).map_or(0, |place| place as i32 + 1))
        }
        text => (text, 0),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    if number.is_finite() && number >= 0.0 { Ok((number * 1000f64.powi(power)) as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(
            [size("2G"), size("2400k"), size("1.5M"), size("700"), size("10MB")].map(Result::unwrap),
            [2_000_000_000, 2_400_000, 1_500_000, 700, 10_000_000]
        );
        assert!(size("x").is_err() && size("-1k").is_err() && size("").is_err());
    }

    #[test]
    fn options_are_read() {
        let read = |text: &str| settings(text.split_whitespace().map(str::to_owned));
        let made =
            read("out --kind binary --files 20 --bytes 3M --max-file 1M --states 2 --no-pool --installable").unwrap();
        assert_eq!(
            (made.kind, made.files, made.bytes, made.content),
            (Kind::Binary, 20, Some(3_000_000), Content::None)
        );
        assert!(made.installable && made.pdiffs && made.states == 2);
        for wrong in ["", "--files 3", "out --files", "out --files x", "out --kind none", "out --what"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
