//! `fullbore probe`: on one machine, and between two namespaces with a real sshd.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "copy/harness.rs"]
mod harness;
#[path = "copy/lab.rs"]
mod lab;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Place, said};
use lab::Lab;
use serde_json::Value;

/// Time that a busy machine may take for what takes a moment.
const LONG: Duration = Duration::from_secs(120);

/// A tree with small and big files.
fn tree(place: &Place) -> String {
    let source = place.path("src");
    fs::create_dir_all(source.join("deep/er")).unwrap();
    for number in 0..200_u32 {
        fs::write(source.join(format!("deep/er/{number}")), vec![number as u8; 5000]).unwrap();
    }
    fs::write(source.join("big"), vec![7; 8 << 20]).unwrap();
    source.display().to_string()
}

fn names(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

/// Runs it; nobody ever sees a name in the directory meanwhile.
fn unseen(command: &mut Command, directory: &Path) -> Output {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut looks = 0;
            while !over.load(Ordering::Acquire) {
                assert_eq!(names(directory), 0, "a probe's file has a name");
                std::thread::sleep(Duration::from_millis(1));
                looks += 1;
            }
            looks
        });
        let output = command.output().unwrap();
        over.store(true, Ordering::Release);
        assert!(watching.join().unwrap() > 0);
        output
    })
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {value:#}"))
}

/// The section of the summary, which is the last line.
fn section(output: &Output) -> Value {
    let events = String::from_utf8(output.stdout.clone()).unwrap();
    let mut summary: Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    assert_eq!((&summary["event"], &summary["command"]), (&"summary".into(), &"probe".into()), "{summary:#}");
    assert!(number(&summary, "/duration_ms") > 0.0 && summary["exit_code"] == 0, "{summary:#}");
    assert!(summary["verdict"]["limit"].is_string() && summary["verdict"]["shares"].is_array(), "{summary:#}");
    assert!(events.contains(r#""event":"trial""#), "{events}");
    summary["probe"].take()
}

/// What every probe's JSON has.
fn assert_schema(probe: &Value) {
    for path in ["/predicted_s", "/prediction/fixed_s", "/figures/setup_s", "/figures/source/hash"] {
        assert!(number(probe, path) > 0.0, "{path} in {probe:#}");
    }
    assert_eq!(number(probe, "/figures/tree/small_files") as u64, 200);
    assert_eq!(number(probe, "/figures/tree/small_bytes") as u64, 1_000_000);
    assert_eq!(number(probe, "/figures/tree/big_bytes") as u64, 8 << 20);
    let parts: Vec<&str> = probe["parts"].as_array().unwrap().iter().map(|row| row["part"].as_str().unwrap()).collect();
    assert!(parts[0].starts_with("read ") && parts.contains(&"final sync"), "{parts:?}");
    assert!(probe["found"].as_str().unwrap().starts_with("bottleneck: "), "{probe:#}");
    assert!(probe["bottleneck"].is_null() || probe["bottleneck"].is_string());
    let trials = probe.pointer("/figures/trials").and_then(Value::as_array).unwrap();
    let left_out = probe.pointer("/figures/left_out").and_then(Value::as_array).unwrap();
    assert_eq!(trials.len() + left_out.len(), 6, "{probe:#}");
}

#[test]
fn on_one_machine_it_measures_the_disk_and_leaves_it_as_it_was() {
    let place = Place::new();
    let source = tree(&place);
    let target = place.path("dst");
    fs::create_dir(&target).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
    command.args(["probe", "--time", "6", "--json", &source]).arg(&target);
    let output = unseen(&mut command, &target);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let probe = section(&output);
    assert_schema(&probe);
    assert_eq!(probe.pointer("/figures/local"), Some(&Value::Bool(true)));
    assert_eq!(names(&target), 0);
    let missing = place.path("no/such/place");
    let output =
        Command::new(env!("CARGO_BIN_EXE_fullbore")).args(["probe", "--time", "3", &source]).arg(&missing).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let text = said(&output);
    assert!(
        text.contains("part ") && text.contains("bottleneck: ") && text.contains("the copy of this tree takes"),
        "{text}"
    );
    assert!(!missing.exists() && !place.path("no").exists(), "a probe makes no directories");
}

#[test]
fn what_cannot_be_probed_is_told() {
    let place = Place::new();
    let source = tree(&place);
    let code = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_fullbore")).arg("probe").args(arguments).output().unwrap();
        (output.status.code(), said(&output))
    };
    let (status, text) = code(&["/no/such/source", &source]);
    assert!(status == Some(1) && text.contains("/no/such/source: No such file"), "{status:?} {text}");
    let (status, text) = code(&[&source, "/proc/self"]);
    assert!(status == Some(1) && text.contains("/proc/self"), "{status:?} {text}");
    let (status, text) = code(&["a:b", "c:d"]);
    assert!(status == Some(1) && text.contains("has to be on this machine"), "{status:?} {text}");
}

#[test]
fn between_machines_the_network_is_a_part_in_both_directions() {
    let (place, lab) = (Place::new(), Lab::new());
    let source = tree(&place);
    let target = place.path("dst");
    fs::create_dir(&target).unwrap();
    let output =
        unseen(&mut lab.probe(&["--time", "10", "--streams", "4", "--json", &source, &lab.there(&target)]), &target);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let probe = section(&output);
    assert_schema(&probe);
    assert!(number(&probe, "/figures/streams/steady") > 0.0);
    assert!(number(&probe, "/figures/one_stream/path/streams") as u64 == 1, "{probe:#}");
    assert!(number(&probe, "/figures/streams/path/streams") as u64 == 4, "{probe:#}");
    assert!(number(&probe, "/figures/streams/path/round_trip_us") > 0.0);
    assert!(probe["way"].as_str().unwrap().starts_with("4 connections, "), "{probe:#}");
    let output = unseen(
        &mut lab.probe(&["--time", "6", &lab.there(Path::new(&source)), &target.display().to_string()]),
        &target,
    );
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("network "), "{}", said(&output));
    until("nothing listens or runs there any more", || lab.is_quiet() && lab.servers().is_empty());
    let output = lab.probe(&["--ssh-only", "--time", "6", &source, &lab.there(&target)]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("content goes by ssh"), "{}", said(&output));
    let output = lab.probe(&[&source, &lab.there(Path::new("/proc/self"))]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "not within {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A probe that is writing on the far machine.
fn under_way(lab: &Lab, source: &str, target: &Path) -> Child {
    let mut command = lab.probe(&["--time", "60", source, &lab.there(target)]);
    let probe = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Its nameless files show as deleted ones among the descriptors.
    let holds = |pid: &i32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut targets = open.filter_map(|file| fs::read_link(file.path()).ok());
        targets.any(|file| file.starts_with(target) && file.to_string_lossy().ends_with("(deleted)"))
    };
    until("the far end writes", || lab.servers().iter().any(holds));
    probe
}

#[test]
fn whichever_end_is_killed_nothing_is_left() {
    let (place, lab) = (Place::new(), Lab::new());
    let source = tree(&place);
    let target = place.path("dst");
    fs::create_dir(&target).unwrap();

    let mut probe = under_way(&lab, &source, &target);
    probe.kill().unwrap();
    probe.wait().unwrap();
    until("the far end has ended", || lab.servers().is_empty() && lab.is_quiet());
    assert_eq!(names(&target), 0);

    let probe = under_way(&lab, &source, &target);
    for pid in lab.servers() {
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL)
            .unwrap();
    }
    let output = probe.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    until("nothing listens", || lab.is_quiet());
    assert_eq!(names(&target), 0);
}
