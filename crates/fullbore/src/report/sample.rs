//! A report as a real run would make it, for the tests of this folder and for looking at the page.

use fullbore_engine::run::events::Phase;
use fullbore_engine::run::events::Plan;
use fullbore_engine::run::report::*;

/// Two minutes against four uneven mirrors, of which one drips and one is stale.
pub fn report() -> Report {
    Report { summary: summary(), timeline: timeline() }
}

fn summary() -> Summary {
    let host = |name: &str, received_bytes, wasted_bytes, files, requests, connections, rtt_ms, best| HostReport {
        host: name.into(),
        protocol: "HTTP/1.1".into(),
        received_bytes,
        wasted_bytes,
        files,
        requests,
        connections,
        rtt_ms: Some(rtt_ms),
        best_rate_bytes_per_s: best,
        state: "good".into(),
        ..HostReport::default()
    };
    let fault = |at_ms, fault: &str| FaultReport { at_ms, path: None, fault: fault.into() };
    Summary {
        packages: None,
        store: None,
        copy: None,
        probe: None,
        waits: Vec::new(),
        pinned: None,
        fleet: None,
        command: "mirror".into(),
        version: "0.2.0".into(),
        name: Some("debian".into()),
        dir: "/srv/mirror/debian".into(),
        started_unix_s: 1_795_217_885,
        duration_ms: 121_400,
        cpu_ms: 24_800,
        peak_rss_bytes: 58_900_000,
        exit_code: 0,
        changed: true,
        dry_run: false,
        plan: Plan {
            wanted_files: 105_524,
            wanted_bytes: 92_300_000_000,
            fetch_files: 23_590,
            fetch_bytes: 12_614_000_000,
            delete_files: 1_204,
            delete_bytes: 1_310_000_000,
            free_bytes: 410_000_000_000,
            free_inodes: 12_000_000,
        },
        mirrored: Some(Mirrored { files: 105_530, bytes: 92_400_000_000 }),
        totals: Totals {
            files: 23_590,
            needed_bytes: 12_614_000_000,
            received_bytes: 12_807_000_000,
            wasted_bytes: 193_000_000,
            written_bytes: 12_614_000_000,
            resumed_bytes: 0,
            requests: 24_410,
            connections: 31,
            hedged_requests: 212,
            retried_files: 41,
            kept_files: 81_934,
            kept_bytes: 79_686_000_000,
            deleted_files: 1_204,
            deleted_bytes: 1_310_000_000,
            missing_files: 0,
            checked_files: 0,
            checked_bytes: 0,
        },
        indexes: None,
        suites: vec![
            SuiteReport {
                suite: "trixie".into(),
                codename: "trixie".into(),
                version: Some("13.4".into()),
                date_unix_s: 1_795_168_000,
                valid_until_unix_s: None,
                state: SuiteState::Published,
            },
            SuiteReport {
                suite: "trixie-updates".into(),
                codename: "trixie-updates".into(),
                version: None,
                date_unix_s: 1_795_204_000,
                valid_until_unix_s: Some(1_795_808_800),
                state: SuiteState::Published,
            },
            SuiteReport {
                suite: "stable-backports".into(),
                codename: "trixie-backports".into(),
                version: None,
                date_unix_s: 1_795_204_000,
                valid_until_unix_s: Some(1_795_808_800),
                state: SuiteState::Unchanged,
            },
        ],
        hosts: vec![
            HostReport {
                origin: true,
                ..host("deb.example.org", 6_020_000_000, 12_000_000, 11_020, 11_260, 8, 20.4, 62_000_000)
            },
            HostReport {
                protocol: "HTTP/2".into(),
                ..host("ftp.de.example.org", 4_100_000_000, 9_000_000, 8_100, 8_230, 8, 14.8, 38_000_000)
            },
            HostReport {
                faults: vec![fault(31_000, "slower than 1/20 of the others")],
                strikes: 1,
                state: "dropped: slow".into(),
                ..host("mirror.example.net:8080", 240_000_000, 160_000_000, 310, 520, 7, 81.0, 18_500_000)
            },
            HostReport {
                faults: vec![
                    fault(2_000, "404 Not Found"),
                    fault(48_000, "wrong content (SHA-256)"),
                    fault(48_900, "404 Not Found"),
                ],
                strikes: 3,
                ..host("ftp.us.example.org", 2_447_000_000, 12_000_000, 4_160, 4_400, 8, 101.2, 30_000_000)
            },
        ],
        verdict: Some(VerdictReport {
            limit: "the access link".into(),
            reason: "sockets found empty at 93 % of reads; one more connection brought 0.4 %".into(),
            confident: true,
            share: 0.78,
            shares: vec![("network".into(), 0.78), ("disk".into(), 0.12), ("unexplained".into(), 0.10)],
            next: Some("disk, used to 61 %".into()),
            advice: "A fifth mirror would not help: the trial with one more connection brought 0.4 % more. A disk \
                     is busy for 61 % of the time; a faster one would not pay."
                .into(),
            evidence: vec![
                "sockets found empty at 93 % of reads".into(),
                "one more connection raised the total by 0.4 %".into(),
                "disk sda busy 61 %, cores busy 24 %".into(),
            ],
        }),
        warnings: vec!["mirror.example.net:8080 is left out from 0 m 31 s: slower than 1/20 of the others".into()],
        problems: Vec::new(),
    }
}

fn timeline() -> Timeline {
    let mut timeline = Timeline::new(100);
    for (at_ms, phase) in [
        (0, Phase::Release),
        (400, Phase::Indexes),
        (2_600, Phase::Plan),
        (3_100, Phase::Fetch),
        (117_000, Phase::Sync),
        (120_000, Phase::Publish),
        (120_600, Phase::Clean),
    ] {
        timeline.phase(at_ms, phase);
    }
    let names = ["deb.example.org", "ftp.de.example.org", "mirror.example.net:8080", "ftp.us.example.org"];
    let mut bytes = [0_u64; 4];
    let mut written = 0_u64;
    // A small linear congruential generator: the page must not change from run to run.
    let mut seed = 7_u64;
    for tick in 1..=1214_u64 {
        let at_ms = tick * 100;
        let ramp = (at_ms as f64 / 4000.0).min(1.0);
        let fetching = (400..117_000).contains(&at_ms);
        let planning = (2_600..3_100).contains(&at_ms);
        let sync_dip = (54_000..58_000).contains(&at_ms);
        let rates = [55e6, 36e6, if at_ms < 31_000 { 16e6 } else { 0.0 }, if at_ms < 31_000 { 10e6 } else { 22e6 }];
        for (total, rate) in bytes.iter_mut().zip(rates) {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let noise = 0.9 + (seed >> 40) as f64 / (1_u64 << 24) as f64 * 0.2;
            let slow = if sync_dip { 0.45 } else { 1.0 };
            if fetching && !planning {
                *total += (rate * noise * ramp * slow / 10.0) as u64;
            }
        }
        let received: u64 = bytes.iter().sum();
        let lag = 60_000_000;
        if at_ms % 500 < 300 || !fetching {
            written = written.max(if fetching { received.saturating_sub(lag) } else { received });
        }
        timeline.limit(
            at_ms,
            match at_ms {
                0..5_000 => "",
                54_000..58_000 | 117_000.. => "disk",
                31_000..36_000 => "",
                _ => "network",
            },
        );
        let connections = |host: usize| {
            if !fetching || (host == 2 && at_ms > 31_000) { 0 } else { 4 }
        };
        let hosts: Vec<(&str, u64, u16)> =
            names.iter().enumerate().map(|(i, name)| (*name, bytes[i], connections(i))).collect();
        let syncing = (117_000..120_000).contains(&at_ms) || sync_dip;
        let stage = |stage, busy, device, starved, blocked| StageSample { stage, busy, device, starved, blocked };
        let stages = if fetching && !planning {
            let disk = if sync_dip { 0.95 } else { 0.35 };
            [
                stage("network", 0.18, 0.0, 0.74 * ramp as f32, if sync_dip { 0.6 } else { 0.02 }),
                stage("tls", 0.12, 0.0, 0.8, 0.02),
                stage("hash", 0.22, 0.0, 0.7, if sync_dip { 0.5 } else { 0.04 }),
                stage("disk write", 0.08, disk, (0.9_f32 - disk).max(0.0), 0.0),
                stage("sync", 0.0, if syncing { 0.97 } else { 0.04 }, 0.0, 0.0),
                stage("local scan", 0.0, 0.0, 0.0, 0.0),
            ]
        } else {
            [
                stage("network", 0.0, 0.0, 0.3, 0.0),
                stage("tls", 0.0, 0.0, 0.3, 0.0),
                stage("hash", 0.0, 0.0, 0.9, 0.0),
                stage("disk write", 0.0, 0.0, 0.9, 0.0),
                stage("sync", 0.0, if syncing { 0.97 } else { 0.0 }, 0.0, 0.0),
                stage("local scan", if planning { 0.7 } else { 0.0 }, if planning { 0.25 } else { 0.0 }, 0.0, 0.0),
            ]
        };
        timeline.record(&Sample {
            at_ms,
            received_bytes: received,
            written_bytes: written,
            hosts: &hosts,
            stages: &stages,
        });
    }
    timeline
}
