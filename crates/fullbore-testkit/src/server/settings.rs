//! Behaviour as text, for the test server's command line and its standard input.
//!
//! `KEY=VALUE`. Faults take a probability, and before it, where wanted, the paths they are for:
//! `reset=0.05`, `corrupt=/pool/:0.01`, `status:404=*.deb:1`. Without paths a fault is for `/pool/`.

use std::time::Duration;

use super::behaviour::{Behaviour, Fault, FaultRule, Life, PathMatch};

/// What a setting can be, for `--help`.
pub const HELP: &str = "\
settings: KEY=VALUE
  faults, KEY=[PATHS:]PROBABILITY (PATHS: /prefix, *suffix or * for all; default /pool/):
    status:CODE retry:SECONDS reset truncate corrupt corrupt-ranges portal short-length long-length
    redirect:URL redirect-signed:URL redirect-loop redirect-injection stall hang drip:BYTES_PER_S delay:MS close chunked
    until-close http10 gzip-encoding endless ignore-range wrong-range lying-range not-modified
    big-header:BYTES from:DIR
  clear=1                 forget all faults
  root=DIR seed=N delay_ms=MS rate=BYTES_PER_S connection_rate=BYTES_PER_S
  keepalive=REQUESTS announce_close=0|1 ranges=0|1 validators=0|1 permute=0|1
  max_connections=N die_after=BYTES death=refuse|silent
";

/// A setting that makes no sense.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {reason}")]
pub struct SettingError {
    setting: String,
    reason: &'static str,
}

/// Applies one setting.
pub fn apply(behaviour: &mut Behaviour, setting: &str) -> Result<(), SettingError> {
    let wrong = |reason| SettingError { setting: setting.to_string(), reason };
    // A fault's argument may be a URL, which holds no `=` before the probability's.
    let (key, value) = setting.rsplit_once('=').ok_or_else(|| wrong("not KEY=VALUE"))?;
    let number = || value.parse::<u64>().map_err(|_| wrong("not a number"));
    let some = || number().map(|n| (n > 0).then_some(n));
    match key {
        "root" => behaviour.root = value.into(),
        "seed" => behaviour.seed = number()?,
        "delay_ms" => behaviour.delay = Duration::from_millis(number()?),
        "rate" => behaviour.rate_bytes_per_s = some()?,
        "connection_rate" => behaviour.connection_rate_bytes_per_s = some()?,
        "keepalive" => behaviour.requests_per_connection = some()?.map(|n| n as u32),
        "announce_close" => behaviour.announce_close = number()? > 0,
        "ranges" => behaviour.ranges = number()? > 0,
        "validators" => behaviour.validators = number()? > 0,
        "permute" => behaviour.permute = number()? > 0,
        "max_connections" => behaviour.max_connections = some()?,
        "die_after" => behaviour.die_after_bytes = some()?,
        "death" => {
            behaviour.death = match value {
                "refuse" => Life::Refusing,
                "silent" => Life::Silent,
                _ => return Err(wrong("neither refuse nor silent")),
            }
        }
        "clear" => behaviour.faults.clear(),
        _ => {
            let fault = fault(key).ok_or_else(|| wrong("no such setting or fault"))?;
            let (path, probability) = match value.rsplit_once(':') {
                Some((paths, probability)) => (paths_of(paths), probability),
                None => (PathMatch::Prefix("/pool/".into()), value),
            };
            let probability = probability.parse().map_err(|_| wrong("not a probability"))?;
            behaviour.faults.push(FaultRule { path, probability, sticky: false, first: None, fault });
        }
    }
    Ok(())
}

fn paths_of(text: &str) -> PathMatch {
    match text.strip_prefix('*') {
        Some("") => PathMatch::Any,
        Some(suffix) => PathMatch::Suffix(suffix.to_string()),
        None => PathMatch::Prefix(text.to_string()),
    }
}

fn fault(key: &str) -> Option<Fault> {
    let (name, argument) = key.split_once(':').unwrap_or((key, ""));
    Some(match name {
        "status" => Fault::Status(argument.parse().ok()?),
        "retry" => Fault::RetryAfter { status: 429, seconds: argument.parse().unwrap_or(1) },
        "reset" => Fault::Reset,
        "truncate" => Fault::Truncate,
        "corrupt" => Fault::Corrupt,
        "corrupt-ranges" => Fault::CorruptRanges,
        "portal" => Fault::Portal,
        "short-length" => Fault::ShortLength,
        "long-length" => Fault::LongLength,
        "redirect" => Fault::Redirect(argument.to_string()),
        "redirect-signed" => Fault::RedirectSigned(argument.to_string()),
        "redirect-loop" => Fault::RedirectLoop,
        "redirect-injection" => Fault::RedirectInjection,
        "stall" => Fault::Stall,
        "hang" => Fault::Hang,
        "drip" => Fault::Drip(argument.parse().ok()?),
        "delay" => Fault::Delay(Duration::from_millis(argument.parse().ok()?)),
        "close" => Fault::Close,
        "chunked" => Fault::Chunked,
        "until-close" => Fault::UntilClose,
        "http10" => Fault::Http10,
        "gzip-encoding" => Fault::GzipEncoding,
        "endless" => Fault::Endless,
        "ignore-range" => Fault::IgnoreRange,
        "wrong-range" => Fault::WrongRange,
        "lying-range" => Fault::LyingRange,
        "not-modified" => Fault::NotModified,
        "big-header" => Fault::BigHeader(argument.parse().ok()?),
        "from" => Fault::From(argument.into()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        let mut behaviour = Behaviour::good("/a");
        for text in ["rate=1000", "reset=0.5", "status:404=*.deb:1", "redirect:http://h:1/x=*:0.1", "keepalive=0"] {
            apply(&mut behaviour, text).unwrap();
        }
        assert_eq!(behaviour.rate_bytes_per_s, Some(1000));
        assert_eq!(behaviour.requests_per_connection, None);
        let faults: Vec<_> = behaviour.faults.iter().map(|rule| (&rule.path, &rule.fault)).collect();
        assert_eq!(faults[0], (&PathMatch::Prefix("/pool/".into()), &Fault::Reset));
        assert_eq!(faults[1], (&PathMatch::Suffix(".deb".into()), &Fault::Status(404)));
        assert_eq!(faults[2], (&PathMatch::Any, &Fault::Redirect("http://h:1/x".into())));
        assert!(apply(&mut behaviour, "nonsense=1").is_err());
    }
}
