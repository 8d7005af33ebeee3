//! Formats the results of a probe as the report that all commands share.

use std::time::Duration;

use fullbore_engine::run::report::{self, PartRow as Row, ProbeReport, Report, Summary, Totals, VerdictReport};
use fullbore_engine::stage::StageReading;
use fullbore_engine::units;
use fullbore_engine::verdict::remote::MIXED;
use fullbore_engine::verdict::thresholds::LARGER_PART;

use super::{Basis, Class, Figures, Finding, Flow, Joint, Part, Prediction, Rate, Trial};
use crate::judgement::Judgement;
use crate::run::disk_words;
use crate::sender::compress;
use crate::transport::congestion::LOSS;

/// All results that the report needs.
pub(super) struct Found<'a> {
    /// The source as the user wrote it.
    pub(super) source: String,
    /// The destination as the user wrote it.
    pub(super) target: String,
    /// All measurements.
    pub(super) figures: &'a Figures,
    /// The predicted time.
    pub(super) prediction: &'a Prediction,
    /// The limiting part.
    pub(super) finding: &'a Finding,
    /// The cipher, and how connections were made.
    pub(super) way: String,
    /// Duration of the probe in seconds.
    pub(super) seconds: f64,
}

fn prediction_gain(prediction: &Prediction, part: Part) -> f64 {
    prediction.quarter.iter().find(|(known, _)| *known == part).map_or(0.0, |(_, gain)| *gain)
}

fn rate(bytes_per_s: f64) -> String {
    format!("{}/s", units::bytes(bytes_per_s as u64))
}

fn time(seconds: f64) -> String {
    units::duration((seconds * 1e3).clamp(0.0, 1e15) as u64)
}

impl Found<'_> {
    /// Builds the report.
    pub(super) fn report(&self) -> Report {
        let (figures, prediction, finding) = (self.figures, self.prediction, self.finding);
        let value = |figures: serde_json::Result<serde_json::Value>| figures.unwrap_or_default();
        let mut advice = self.advice();
        if !figures.left_out.is_empty() {
            advice.push(format!("skipped for lack of time: {} (--time gives more)", figures.left_out.join("; ")));
        }
        let probe = ProbeReport {
            source: self.source.clone(),
            destination: self.target.clone(),
            probed: self.probed(),
            way: self.way.clone(),
            parts: self.rows(),
            bottleneck: finding.part.and_then(|part| Some(serde_json::to_value(part).ok()?.as_str()?.to_owned())),
            found: self.bottleneck(),
            takes: self.takes(),
            predicted_s: prediction.seconds,
            saves_s: finding.part.map(|part| prediction.saves(part)),
            advice,
            figures: value(serde_json::to_value(figures)),
            finding: value(serde_json::to_value(finding)),
            prediction: value(serde_json::to_value(prediction)),
        };
        let summary = Summary {
            started_unix_s: report::began(Duration::from_secs_f64(self.seconds)),
            duration_ms: (self.seconds * 1e3) as u64,
            totals: Totals {
                checked_files: figures.tree.files(),
                checked_bytes: figures.tree.bytes(),
                ..Totals::default()
            },
            verdict: Some(self.verdict()),
            probe: Some(probe),
            ..Summary::default()
        };
        Report { summary, ..Report::default() }
    }

    /// One line on the tree that was examined.
    fn probed(&self) -> String {
        let tree = &self.figures.tree;
        let more = match (tree.complete, tree.estimated_from) {
            (true, _) => "",
            (_, None) => ", and more that could not be listed in time",
            (_, Some(Basis::FileSystem)) => {
                " (an estimate, from what its file system holds: not all could be listed in time)"
            }
            (_, Some(Basis::Directories)) => " (an estimate, from the directories that could be listed in time)",
        };
        format!(
            "probed {} -> {} in {}: {} in {} {}{more}",
            self.source,
            self.target,
            time(self.seconds),
            units::bytes(tree.bytes()),
            units::count(tree.files()),
            units::noun(tree.files(), "file", "files"),
        )
    }

    /// One line on how long the copy would take.
    fn takes(&self) -> String {
        let prediction = self.prediction;
        let bytes_per_s = self.figures.tree.bytes() as f64 / prediction.seconds.max(1e-3);
        let at_least = match (prediction.at_least, prediction.estimate) {
            (true, _) => "at least ",
            (_, true) => "about ",
            _ => "",
        };
        let (takes, bytes_per_s) = (time(prediction.seconds), rate(bytes_per_s));
        format!("the copy of this tree takes {at_least}{takes}, {bytes_per_s}")
    }

    /// The limit in the form of all commands. Its share is the used capacity of the part, as no copy has run.
    fn verdict(&self) -> VerdictReport {
        let finding = self.finding;
        let used = |part: Part| finding.used.iter().find(|(known, _)| *known == part).map_or(0.0, |(_, used)| *used);
        let shares: Vec<(String, f64)> =
            finding.used.iter().map(|(part, used)| (self.words(*part).to_owned(), *used)).collect();
        VerdictReport {
            limit: finding.part.map_or(MIXED, |part| self.words(part)).to_owned(),
            reason: self.signals().join("; "),
            confident: finding.part.is_some(),
            share: finding.part.map_or_else(|| shares.first().map_or(0.0, |(_, share)| *share), used),
            next: finding.next.map(|(next, times)| format!("{}, at {times:.1}x", self.words(next))),
            advice: self.advice().join("; "),
            evidence: self.rows().iter().map(|row| format!("{}: {}", row.part, row.evidence.join(", "))).collect(),
            shares,
        }
    }

    /// The name of a part in this report.
    fn words(&self, part: Part) -> &'static str {
        match part {
            Part::SourceCpu | Part::TargetCpu if self.figures.local => "the processor",
            part => part.words(),
        }
    }

    /// The signals that point to the named part.
    fn signals(&self) -> Vec<String> {
        let finding = self.finding;
        let Some(part) = finding.part else { return Vec::new() };
        let used = finding.used.iter().find(|(known, _)| *known == part).map_or(0.0, |(_, used)| *used);
        let mut signals = Vec::new();
        if finding.judged == Some(part) && !finding.words.is_empty() {
            signals.push(finding.words.clone());
        }
        if finding.intervened == Some(part) {
            signals.push(match part {
                Part::Read | Part::Write => "without it, it goes faster; without the others, it does not".to_owned(),
                _ => "leaving out either end makes it no faster".to_owned(),
            });
        }
        if finding.modelled == Some(part) {
            let gain = prediction_gain(self.prediction, part);
            signals.push(format!(
                "{:.0} % of it used; a quarter more of it makes the copy {:.0} % faster",
                used * 100.0,
                gain * 100.0
            ));
        }
        signals
    }

    /// `bottleneck: …`, or why none is named.
    fn bottleneck(&self) -> String {
        let finding = self.finding;
        if let Some(part) = finding.part {
            return format!("bottleneck: {} ({})", self.words(part), self.signals().join("; "));
        }
        if finding.used.is_empty() {
            return "bottleneck: unknown; there was nothing to copy, or no time".to_owned();
        }
        let shares: Vec<String> = finding
            .used
            .iter()
            .take(3)
            .map(|(part, used)| format!("{} {:.0} %", self.words(*part), used * 100.0))
            .collect();
        format!("bottleneck: mixed; used of what each does alone: {}", shares.join(", "))
    }

    /// What would help, and how much time it would save.
    fn advice(&self) -> Vec<String> {
        let (figures, prediction, finding) = (self.figures, self.prediction, self.finding);
        let mut advice = Vec::new();
        if let Some(part) = finding.part {
            let saves = prediction.saves(part);
            let _ = finding.next.map(|(next, times)| {
                advice.push(format!(
                    "next limit: {}, at {times:.1}x; removing the bottleneck saves {} of {}",
                    self.words(next),
                    time(saves),
                    time(prediction.seconds)
                ));
            });
            match part {
                Part::Network => advice.extend(self.network_advice(finding.next.map(|(_, times)| times))),
                Part::SourceCpu | Part::TargetCpu => {
                    advice.push(format!(
                        "more or faster cores, or less other work on this machine, would help ({})",
                        finding.words
                    ));
                }
                Part::Read | Part::Write => {}
            }
        }
        let troubles = figures.read.disks.troubles.iter().chain(&figures.write.disks.troubles);
        advice.extend(troubles.map(|trouble| format!("look at the array: {trouble}")));
        if let Some((first, last)) = figures.write.fell {
            advice.push(format!(
                "writing became slower during the trial: {} at first, {} at last; a long copy will see the latter",
                rate(first),
                rate(last)
            ));
        }
        advice
    }

    fn network_advice(&self, room: Option<f64>) -> Vec<String> {
        let figures = self.figures;
        let mut advice = Vec::new();
        let Some(streams) = &figures.streams else { return advice };
        let path = &streams.path;
        if let Some(compress) = figures.source.compress.filter(|found| found.left <= compress::WORTH) {
            advice.push(format!(
                "zstd would leave {:.0} % of the content, at {} a core",
                compress.left * 100.0,
                rate(compress.bytes_per_s)
            ));
        }
        if path.receiver_limited >= LARGER_PART {
            advice.push(
                "the receiver's window is the limit: larger net.ipv4.tcp_rmem there, or more --streams".to_owned(),
            );
        } else if path.buffer_limited >= LARGER_PART {
            advice.push(
                "send buffers are the limit: larger net.ipv4.tcp_wmem at the source, or more --streams".to_owned(),
            );
        } else if path.loss >= LOSS {
            advice.push(format!(
                "{:.2} % of segments were lost: a cleaner path, or --congestion bbr, would help",
                path.loss * 100.0
            ));
        } else if let Some(times) = room {
            advice.push(format!("a faster link would pay up to {}", rate(streams.steady * times)));
        }
        advice
    }

    fn rows(&self) -> Vec<Row> {
        let (figures, finding) = (self.figures, self.finding);
        let class = finding.class.unwrap_or(Class::Big);
        let used = |part: Part| finding.used.iter().find(|(known, _)| *known == part).map(|(_, used)| *used);
        let whole = figures.trial(Joint::Whole, class);
        let waited_for = |part: Part| whole.and_then(|trial| waited_for(trial, part, figures.local));
        let row = |part: Part, name: String| Row {
            used: used(part),
            waited_for: waited_for(part),
            limits: finding.part == Some(part),
            ..Row::new(name)
        };
        let mut rows = vec![self.read_row(class, row(Part::Read, format!("read {}", self.source)))];
        let mut compress = Row { instead: Some("off".to_owned()), ..Row::new("compress") };
        if let Some(found) = figures.source.compress {
            compress.evidence =
                vec![format!("zstd 1 leaves {:.0} %, {} a core", found.left * 100.0, rate(found.bytes_per_s))];
        }
        rows.push(compress);
        for (part, compute, words) in [
            (Part::SourceCpu, &figures.source, if figures.local { "processor" } else { "hash + encrypt" }),
            (Part::TargetCpu, &figures.target, "decrypt + verify"),
        ] {
            if figures.local && part == Part::TargetCpu {
                break;
            }
            let cipher = compute.aes.max(compute.chacha);
            // One machine hashes twice: once after reading, once before writing.
            let (hash_s, cipher_s) = (1.0 / compute.hash.max(1.0), 1.0 / cipher.max(1.0));
            let per_byte = hash_s + if figures.local { hash_s } else { cipher_s };
            let mut row = row(part, words.to_owned());
            row.limits |= figures.local && finding.part == Some(Part::TargetCpu);
            if row.limits {
                // Other processes, or work other than hashing, may use the processor. The share of hashing would be
                // misleading then.
                row.used = None;
            }
            row.alone_bytes_per_s = Some(compute.cores as f64 / per_byte);
            row.evidence = vec![format!(
                "{}; of one: BLAKE3 {}",
                units::several(compute.cores as u64, "core", "cores"),
                rate(compute.hash)
            )];
            if !figures.local {
                row.evidence.push(format!("AES-128-GCM {}, ChaCha20 {}", rate(compute.aes), rate(compute.chacha)));
            }
            rows.push(row);
            if part == Part::SourceCpu && !figures.local {
                rows.push(self.network_row(Row {
                    used: used(Part::Network),
                    waited_for: waited_for(Part::Network),
                    limits: finding.part == Some(Part::Network),
                    ..Row::new("network")
                }));
            }
        }
        rows.push(self.write_row(class, row(Part::Write, format!("write {}", self.target))));
        for (joint, words) in [
            (Joint::ReadSend, if figures.local { "read + verify" } else { "read + send" }),
            (Joint::SendWrite, if figures.local { "verify + write" } else { "send + write" }),
            (Joint::Whole, "everything"),
        ] {
            rows.extend(self.joint_row(joint, class, words));
        }
        rows.push(Row {
            instead: Some(time(self.prediction.final_sync_s)),
            evidence: vec!["expected, for the last group of files".to_owned()],
            ..Row::new("final sync")
        });
        rows
    }

    fn read_row(&self, class: Class, mut row: Row) -> Row {
        let read = &self.figures.read;
        let (cold, warm, cached) = match class {
            Class::Big => (read.big_cold, read.big_warm, read.big_cached),
            Class::Small => (read.small_cold, read.small_warm, read.small_cached),
        };
        fill(&mut row, class, cold.or(warm));
        row.evidence = disk_words(&read.disks);
        row.evidence.push(units::several(read.threads as u64, "reader", "readers"));
        if cold.is_none() && warm.is_some() {
            row.evidence.push("warm: read from memory".to_owned());
        } else if let Some(warm) = warm {
            row.evidence.push(format!("{:.0} % is in memory: warm {}", cached * 100.0, one_rate(class, warm)));
        }
        let other =
            if class == Class::Big { read.small_cold.or(read.small_warm) } else { read.big_cold.or(read.big_warm) };
        row.evidence.extend(other.map(|rate| other_kind(class, rate)));
        row
    }

    fn network_row(&self, mut row: Row) -> Row {
        let figures = self.figures;
        let Some(streams) = &figures.streams else { return row };
        row.alone_bytes_per_s = Some(streams.steady);
        let path = &streams.path;
        let one = figures.one_stream.as_ref().map(|flow: &Flow| format!("1 connection {}", rate(flow.steady)));
        row.evidence.extend(one);
        if path.streams > 0 {
            row.evidence.push(format!("{} connections {}", path.streams, rate(streams.steady)));
            // The kernel reports figures only for this process's own TCP connections.
            if path.round_trip_us > 0 {
                row.evidence.push(format!("round trip {:.1} ms", path.round_trip_us as f64 / 1e3));
                row.evidence.push(format!("{:.2} % sent twice", path.loss * 100.0));
            }
        } else {
            row.evidence.push(format!("all of them {}", rate(streams.steady)));
        }
        if path.receiver_limited >= 0.01 {
            row.evidence.push(format!("receiver's window {:.0} %", path.receiver_limited * 100.0));
        }
        if path.buffer_limited >= 0.01 {
            row.evidence.push(format!("send buffer {:.0} %", path.buffer_limited * 100.0));
        }
        row.evidence.extend(path.control.clone());
        row
    }

    fn write_row(&self, class: Class, mut row: Row) -> Row {
        let write = &self.figures.write;
        let (own, other) = match class {
            Class::Big => (write.big, write.small),
            Class::Small => (write.small, write.big),
        };
        fill(&mut row, class, own);
        row.evidence = disk_words(&write.disks);
        row.evidence.push(match (class, write.memory, write.direct) {
            (_, true, _) => "memory".to_owned(),
            (Class::Big, _, true) => "O_DIRECT".to_owned(),
            _ => "flush included".to_owned(),
        });
        row.evidence.push(units::several(write.threads as u64, "writer", "writers"));
        row.evidence.extend(other.map(|rate| other_kind(class, rate)));
        row.evidence.push(format!("{} free", units::bytes(write.free_bytes)));
        if write.unflushed {
            row.evidence.push("a flush took longer than a probe waits".to_owned());
        }
        if write.named {
            row.evidence.push("no O_TMPFILE there: files had names for a moment".to_owned());
        }
        row
    }

    fn joint_row(&self, joint: Joint, class: Class, words: &str) -> Option<Row> {
        let trial = self.figures.trial(joint, class)?;
        let mut row = Row::new(words);
        match class {
            Class::Big => row.alone_bytes_per_s = Some(trial.bytes_per_s()),
            Class::Small => row.alone_files_per_s = Some(trial.files_per_s()),
        }
        if trial.landed.flush_s >= 0.05 {
            row.evidence.push(format!(
                "flush of {} in {}",
                units::bytes(trial.landed.bytes),
                time(trial.landed.flush_s)
            ));
        }
        let other = if class == Class::Big { Class::Small } else { Class::Big };
        row.evidence.extend(self.figures.trial(joint, other).map(|trial| match other {
            Class::Small => format!("small files {:.0}/s", trial.files_per_s()),
            Class::Big => format!("big files {}", rate(trial.bytes_per_s())),
        }));
        Some(row)
    }
}

/// Share of the trial of everything in which other stages waited for a part: a later stage had no data, or an earlier
/// one could not pass data on.
fn waited_for(trial: &Trial, part: Part, local: bool) -> Option<f64> {
    let (sender, receiver) = (&trial.flow.judgement, &trial.landed.judgement);
    let streams = trial.flow.path.streams.max(1) as u64;
    let share = |end: &Judgement, name: &str, wait: fn(&StageReading) -> u64| {
        let stage = end.stage(name)?;
        // Connection threads are older than the trial, so its clocks did not count them.
        let threads = if stage.threads > 0 { stage.threads } else { streams };
        Some((wait(stage) as f64 / 1e9 / threads as f64 / trial.flow.seconds.max(1e-9)).min(1.0))
    };
    let starved: fn(&StageReading) -> u64 = |stage| stage.starved_ns;
    let blocked: fn(&StageReading) -> u64 = |stage| stage.blocked_ns;
    match (part, local) {
        (Part::Read, true) => share(sender, "disk write", starved),
        (Part::Write, true) => share(sender, "read", blocked),
        (Part::Read, false) => share(sender, "send", starved),
        (Part::Network, false) => Some(share(sender, "read", blocked)?.min(share(receiver, "disk write", starved)?)),
        (Part::Write, false) => share(receiver, "receive", blocked),
        _ => None,
    }
}

fn fill(row: &mut Row, class: Class, rate: Option<Rate>) {
    match class {
        Class::Big => row.alone_bytes_per_s = rate.map(|rate| rate.bytes_per_s()),
        Class::Small => row.alone_files_per_s = rate.map(|rate| rate.items_per_s()),
    }
}

fn one_rate(class: Class, of: Rate) -> String {
    match class {
        Class::Big => rate(of.bytes_per_s()),
        Class::Small => format!("{:.0} files/s", of.items_per_s()),
    }
}

/// The rate of the other kind of files.
fn other_kind(class: Class, of: Rate) -> String {
    match class {
        Class::Big => format!("small files {:.0}/s", of.items_per_s()),
        Class::Small => format!("big files {}", rate(of.bytes_per_s())),
    }
}
