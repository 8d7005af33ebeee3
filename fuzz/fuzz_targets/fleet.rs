//! Messages between planner and workers. What is parsed stays below the mirror's root, is no published file, is within
//! its bounds, and is written as it was read.
#![no_main]

use fullbore_fleet::message::{Kind, MESSAGE_BYTES_MAX, Report, Run, StorePlace, Task};
use fullbore_fleet::names::{WorkerId, lease_key, parse_bad_key, parse_lease_key};
use fullbore_fleet::shards::Shard;
use fullbore_fleet::tasks::{PACK_BYTES_MAX, PACK_FILES_MAX};

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, data)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(data);
    match kind % 4 {
        0 => {
            let Ok(task) = Task::parse(data) else { return };
            assert!((1..=PACK_FILES_MAX).contains(&task.items.len()) && data.len() <= MESSAGE_BYTES_MAX);
            assert!(task.items.len() == 1 || task.bytes() <= PACK_BYTES_MAX);
            assert!(task.replaces.is_empty() || task.replaces.len() == task.items.len());
            for item in &task.items {
                let path = &item.path;
                assert!(path.split('/').all(|part| !part.is_empty() && part != "." && part != ".."), "{path}");
                match &task.kind {
                    Kind::Fetch => {
                        assert!(!path.starts_with("dists/"), "only the planner publishes");
                        assert!(path.split('/').all(|part| !part.starts_with('.')), "{path}");
                    }
                    Kind::Put => {}
                    Kind::Part(part) => {
                        let range = part.range(item.size);
                        assert!(task.items.len() == 1 && !range.is_empty() && range.end <= item.size);
                        assert_eq!(task.bytes(), range.end - range.start);
                    }
                }
            }
            assert_eq!(Task::parse(&task.to_bytes()).unwrap(), task);
        }
        1 => {
            let Ok(run) = Run::parse(data) else { return };
            assert_eq!(Run::parse(&run.to_bytes()).unwrap(), run);
        }
        2 => {
            let worker = WorkerId::parse("w").unwrap();
            for report in [Report::parse_stat(data, &worker), Report::parse_fault(data)].into_iter().flatten() {
                assert!(!report.to_bytes().is_empty());
            }
        }
        _ => {
            let _ = StorePlace::parse(&text);
            let _ = parse_bad_key(&text);
            let _ = text.parse::<Shard>();
            if let Some((host, number)) = parse_lease_key(&text) {
                assert_eq!(parse_lease_key(&lease_key(&host, number)), Some((host, number)));
            }
        }
    }
});
