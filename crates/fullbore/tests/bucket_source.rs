//! `--from s3://…`: archives in buckets as the source of a mirror, against versitygw, which checks each signature.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;
#[path = "s3/proxy.rs"]
#[allow(dead_code, reason = "shared by several test binaries")]
mod proxy;
#[path = "s3/servers.rs"]
#[allow(dead_code, unused_imports, reason = "shared by several test binaries")]
mod servers;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fullbore_testkit::server::Server;
use harness::{Mirror, Ran, common, verified};
use proxy::{Action, Proxy};
use servers::{Client, versitygw};

const FROM: &str = "s3://bucket/debian";
const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "fullbore"), ("AWS_SECRET_ACCESS_KEY", "only-for-tests")];

/// A store with a state of the archive in its bucket.
fn store_with(state: usize) -> servers::Server {
    let store = versitygw();
    put(&store, state);
    store
}

/// Puts a state of the archive there, as `aws s3 sync` would.
fn put(store: &servers::Server, state: usize) {
    let client = Client::new(&store.url);
    let root = common().state(state).root.clone();
    // As with rsync, the slash means what is in it.
    let out = client.run(["put", &format!("{}/", root.display()), FROM, "-q"]);
    assert_eq!(out.code, 0, "{}", out.stderr);
}

/// A mirror of what this address has. Nothing of this machine's settings of the AWS tools counts.
fn command(mirror: &Mirror, from: &[&str], keys: &[(&str, &str)], more: &[&str]) -> Command {
    let mut command = mirror.command(&[], more);
    for from in from {
        command.args(["--from", from]);
    }
    for (name, _) in std::env::vars() {
        if name.starts_with("AWS_") {
            command.env_remove(name);
        }
    }
    command.env("AWS_EC2_METADATA_DISABLED", "true").env("HOME", mirror.to.parent().unwrap());
    command.envs(keys.iter().copied());
    command
}

fn run(mirror: &Mirror, from: &[&str], keys: &[(&str, &str)], more: &[&str]) -> Ran {
    let ran = mirror.finish(command(mirror, from, keys, more));
    for text in [&ran.stdout, &ran.stderr, &ran.report.to_string()] {
        assert!(!text.contains("only-for-tests") && !text.contains("Signature="), "a secret is shown: {text}");
    }
    ran
}

fn at(store: &str, rest: &str) -> String {
    format!("{FROM}?endpoint={store}{rest}")
}

#[test]
fn a_mirror_of_a_bucket_is_that_of_the_archive() {
    let store = store_with(0);
    let mirror = Mirror::new(common());
    let first = run(&mirror, &[FROM], &KEYS, &["--endpoint", &store.url]).exits(0);
    verified(&mirror.to, common(), 0);
    let plus = common().state(0).files.iter().filter(|file| file.path.contains('+') && file.path.contains('~'));
    assert!(plus.count() > 0, "names that S3 wants encoded are among the files");
    assert!(first.number("totals.files") > 10);
    // The address and the flags are two ways to say the same.
    let again = run(&mirror, &[&at(&store.url, "")], &KEYS, &["--changed-exit"]).exits(10);
    assert_eq!(again.number("totals.requests"), 1, "whether there is another InRelease");
    assert_eq!(again.number("totals.received_bytes"), 0, "304 has no body");
    put(&store, 1);
    run(&mirror, &[FROM], &KEYS, &["--endpoint", &store.url]).exits(0);
    verified(&mirror.to, common(), 1);
}

#[test]
fn another_region_and_the_place_of_the_bucket_are_found_out_or_said() {
    let store = store_with(0);
    for parameters in ["&region=us-east-1&addressing=path", "&region=eu-north-7"] {
        let mirror = Mirror::new(common());
        run(&mirror, &[&at(&store.url, parameters)], &KEYS, &[]).exits(0);
        verified(&mirror.to, common(), 0);
    }
}

#[test]
fn what_is_wrong_with_credentials_is_said_with_a_hint() {
    let store = store_with(0);
    let from = at(&store.url, "");
    for (name, value, says, hint) in [
        // versitygw has a word of its own for it.
        ("AWS_ACCESS_KEY_ID", "nobody", "XAdminUserNotFound", "profile"),
        ("AWS_SECRET_ACCESS_KEY", "another-one", "SignatureDoesNotMatch", "secret key"),
    ] {
        let mirror = Mirror::new(common());
        let keys: Vec<(&str, &str)> =
            KEYS.iter().filter(|(key, _)| *key != name).copied().chain([(name, value)]).collect();
        let ran = run(&mirror, &[&from], &keys, &[]).exits(3).says(says).says(hint).says(FROM);
        assert!(!ran.stderr.contains("another-one"), "{}", ran.stderr);
        assert!(!mirror.to.join("dists").exists());
    }
    let mirror = Mirror::new(common());
    run(&mirror, &[&from], &[], &[]).exits(3).says("no credentials").says("AWS_ACCESS_KEY_ID");
    run(&mirror, &[&at(&store.url, "&profile=nobody")], &KEYS, &[]).exits(1).says("nobody");
    let elsewhere = format!("s3://no-such-bucket/debian?endpoint={}", store.url);
    run(&mirror, &[&elsewhere], &KEYS, &[]).exits(3).says("NoSuchBucket").says("name of the bucket");
    let empty = format!("s3://bucket/elsewhere?endpoint={}", store.url);
    run(&mirror, &[&empty], &KEYS, &[]).exits(3).says("s3://bucket/elsewhere");
}

#[test]
fn flags_for_stores_need_a_bucket() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    let url = server.url();
    run(&mirror, &[&url], &[], &["--profile", "x"]).exits(1).says("--profile is for buckets");
    run(&mirror, &[&url], &[], &["--no-sign-request"]).exits(1).says("--no-sign-request");
    run(&mirror, &["s3://bucket/debian?profil=x"], &[], &[]).exits(1).says("expected one of endpoint, region, profile");
    run(&mirror, &["gs://bucket/debian"], &[], &[]).exits(1).says("s3://bucket/debian");
    let secret = run(&mirror, &["s3://AKIA1:sEcrEt@bucket/debian"], &[], &[]).exits(1).says("no credentials");
    assert!(!secret.stderr.contains("sEcrEt"));
}

/// Lets everybody read a bucket.
fn publish(store: &servers::Server) {
    let script = r#"
import boto3, json, sys
client = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1",
                      aws_access_key_id="fullbore", aws_secret_access_key="only-for-tests")
statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/*"}
client.put_bucket_policy(Bucket="bucket", Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
"#;
    let done = Command::new(servers::program("moto/bin/python")).args(["-c", script, &store.url]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_public_bucket_needs_no_credentials() {
    let store = store_with(0);
    publish(&store);
    let wrong = [("AWS_ACCESS_KEY_ID", "nobody"), KEYS[1]];
    for (from, keys, more) in [
        (at(&store.url, ""), &[][..], &[][..]),
        (at(&store.url, "&no-sign-request"), &wrong[..], &[][..]),
        (FROM.to_owned(), &wrong[..], &["--no-sign-request", "--endpoint", &store.url][..]),
    ] {
        let mirror = Mirror::new(common());
        run(&mirror, &[&from], keys, more).exits(0);
        verified(&mirror.to, common(), 0);
    }
}

#[test]
fn a_bucket_that_cannot_be_read_stops_no_other_mirror() {
    let store = store_with(0);
    let server = Server::start(&common().state(0).root).unwrap();
    let broken = format!("s3://no-such-bucket/debian?endpoint={}", store.url);
    for sources in [[server.url(), broken.clone()], [at(&store.url, ""), broken.clone()], [broken, at(&store.url, "")]]
    {
        let mirror = Mirror::new(common());
        run(&mirror, &[&sources[0], &sources[1]], &KEYS, &[]).exits(0);
        verified(&mirror.to, common(), 0);
    }
}

#[test]
fn a_bucket_and_a_web_server_send_one_archive_together() {
    let store = store_with(0);
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    run(&mirror, &[&at(&store.url, ""), &server.url()], &KEYS, &[]).exits(0);
    verified(&mirror.to, common(), 0);
}

/// Source and destination are in different stores, with different keys and in different regions.
#[test]
fn a_mirror_goes_from_one_store_into_another() {
    let (source, target) = (store_with(0), versitygw());
    let mut mirror = Mirror::new(common());
    let home = mirror.to.parent().unwrap().to_owned();
    fs::create_dir_all(home.join(".aws")).unwrap();
    let profile = format!(
        "[profile source]\naws_access_key_id = {}\naws_secret_access_key = {}\nendpoint_url = {}\n",
        KEYS[0].1, KEYS[1].1, source.url
    );
    fs::write(home.join(".aws/config"), profile).unwrap();
    let data = target.directory.path().join("data/bucket/mirror");
    let verify = |state| verified(&data, common(), state);
    mirror.to = "s3://bucket/mirror".into();
    let keys = [("AWS_ACCESS_KEY_ID", "fullbore"), ("AWS_SECRET_ACCESS_KEY", "only-for-tests")];
    let from = "s3://bucket/debian?profile=source";
    let go = |state: usize| {
        let mut command = command(&mirror, &[from], &keys, &["--endpoint", &target.url]);
        command.env("HOME", &home);
        mirror.finish(command).exits(0);
        verify(state);
    };
    go(0);
    put(&source, 1);
    go(1);
}

/// Credentials of a program end in the middle of a run; the store says so in answers to pipelined requests.
#[test]
fn credentials_that_end_are_renewed_within_a_run() {
    let store = store_with(0);
    let mirror = Mirror::new(common());
    let home = mirror.to.parent().unwrap().to_owned();
    let made = home.join("made");
    let program = home.join("keys");
    // Each time, they end on another day. (versitygw takes no tokens, which would be others, too.)
    let script = format!(
        "#!/bin/sh\necho x >> {made}\nprintf '{{\"Version\":1,\"AccessKeyId\":\"{}\",\"SecretAccessKey\":\"{}\",\
         \"Expiration\":\"2099-01-%02dT00:00:00Z\"}}' \"$(wc -l < {made})\"\n",
        KEYS[0].1,
        KEYS[1].1,
        made = made.display()
    );
    fullbore_testkit::process::write_program(&program, &script);
    fs::create_dir_all(home.join(".aws")).unwrap();
    fs::write(home.join(".aws/config"), format!("[profile short]\ncredential_process = {}\n", program.display()))
        .unwrap();
    let fetched = move || fs::read_to_string(&made).map_or(0, |made| made.lines().count());
    // All requests from the twentieth on, until there are others.
    let counts = fetched.clone();
    let proxy = Proxy::start(&store.url, move |number, _| {
        if number >= 20 && counts() < 2 { Action::Refuse(400, "ExpiredToken") } else { Action::now() }
    });
    run(&mirror, &[&at(&proxy.url, "&profile=short")], &[], &[]).exits(0);
    verified(&mirror.to, common(), 0);
    assert!((2..=4).contains(&fetched()), "fetched {} times", fetched());
}

/// Without the right to list a bucket, a store answers 403 for what is not there.
#[test]
fn a_refusal_for_one_object_is_a_missing_object() {
    let store = store_with(0);
    let proxy = Proxy::start(&store.url, |_, line| match line.contains("/by-hash/") {
        true => Action::Refuse(403, "AccessDenied"),
        false => Action::now(),
    });
    let mirror = Mirror::new(common());
    run(&mirror, &[&at(&proxy.url, "")], &KEYS, &[]).exits(0);
    verified(&mirror.to, common(), 0);
    // Nothing at all may be read: the reason is the store's.
    let proxy = Proxy::start(&store.url, |_, _| Action::Refuse(403, "AccessDenied"));
    let mirror = Mirror::new(common());
    run(&mirror, &[&at(&proxy.url, "")], &KEYS, &[]).exits(3).says("AccessDenied").says("s3:GetObject");
}

/// A clock that is wrong by an hour, as the store's answer shows it.
#[test]
fn the_stores_clock_is_taken_over() {
    let store = store_with(0);
    let proxy = Proxy::start(&store.url, |number, _| match number {
        1 => Action::Refuse(403, "RequestTimeTooSkewed"),
        _ => Action::now(),
    });
    let mirror = Mirror::new(common());
    run(&mirror, &[&at(&proxy.url, "")], &KEYS, &[]).exits(0);
    verified(&mirror.to, common(), 0);
}

/// A server that keeps the heads of requests and answers each with this.
fn listener(answer: String) -> (String, Arc<Mutex<Vec<String>>>) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let heads = Arc::<Mutex<Vec<String>>>::default();
    let kept = heads.clone();
    std::thread::spawn(move || {
        for stream in socket.incoming().flatten() {
            let (kept, answer) = (kept.clone(), answer.clone());
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                let mut head = String::new();
                while reader.read_line(&mut head).is_ok_and(|read| read > 0) {
                    if head.ends_with("\r\n\r\n") {
                        kept.lock().unwrap().push(std::mem::take(&mut head));
                        if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    (url, heads)
}

#[test]
fn a_redirect_takes_no_signature_along() {
    let (other, heads) = listener("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned());
    let location = format!("{other}/elsewhere?X-Amz-Signature=abc");
    let (store, asked) = listener(format!("HTTP/1.1 307 X\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"));
    let mirror = Mirror::new(common());
    let keys = [KEYS[0], KEYS[1], ("AWS_SESSION_TOKEN", "tOkEn")];
    run(&mirror, &[&at(&store, "")], &keys, &[]).exits(3);
    let asked = asked.lock().unwrap();
    assert!(asked.iter().all(|head| head.contains("Authorization: AWS4-HMAC-SHA256")), "{asked:?}");
    let heads = heads.lock().unwrap();
    assert!(!heads.is_empty());
    for head in heads.iter() {
        let head = head.to_lowercase();
        assert!(!head.contains("authorization") && !head.contains("x-amz-date") && !head.contains("token"), "{head}");
    }
    // To the same path elsewhere: the whole store has moved, and is named.
    let (moved, heads) = listener("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned());
    let location = format!("{moved}/bucket/debian/dists/trixie/InRelease");
    let (store, _) = listener(format!("HTTP/1.1 301 X\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"));
    let mirror = Mirror::new(common());
    run(&mirror, &[&at(&store, "")], &keys, &[]).exits(3).says("301");
    assert!(heads.lock().unwrap().iter().all(|head| !head.contains("Authorization")));
}

#[test]
fn a_mirror_is_repaired_from_a_bucket() {
    let store = store_with(0);
    let mirror = Mirror::new(common());
    run(&mirror, &[&at(&store.url, "")], &KEYS, &[]).exits(0);
    let damage = || {
        let file = common()
            .state(0)
            .files
            .iter()
            .find(|file| file.path.starts_with("pool/") && mirror.to.join(&file.path).exists());
        let path = mirror.to.join(&file.unwrap().path);
        fs::remove_file(&path).unwrap();
        path
    };
    for from in [None, Some(at(&store.url, ""))] {
        let path = damage();
        let mut command = mirror.check_command(&["--repair"]);
        if let Some(from) = &from {
            command.args(["--from", from]);
        }
        command.envs(KEYS).env("AWS_EC2_METADATA_DISABLED", "true");
        mirror.finish(command).exits(0);
        assert!(path.exists(), "{from:?}");
    }
}

/// The debug output shows neither keys nor tokens, nor does the state.
#[test]
fn nothing_that_is_printed_holds_a_secret() {
    let store = store_with(0);
    // versitygw refuses tokens. Its words may be shown.
    for (token, code) in [(&[("AWS_SESSION_TOKEN", "tOkEn")][..], 3), (&[][..], 0)] {
        let mirror = Mirror::new(common());
        let keys = [&KEYS[..], token].concat();
        let mut command = command(&mirror, &[&at(&store.url, "")], &keys, &["-vv", "--json"]);
        command.env("RUST_LOG", "trace");
        let ran = mirror.finish(command).exits(code);
        let state = read_all(&mirror.to.join(".fullbore"));
        for text in [&ran.stdout, &ran.stderr, &ran.report.to_string(), &state] {
            for secret in ["only-for-tests", "tOkEn", "AWS4-HMAC"] {
                assert!(!text.contains(secret), "{secret} in {text}");
            }
        }
    }
}

fn read_all(directory: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if let Ok(mut file) = fs::File::open(entry.path()) {
            let mut bytes = Vec::new();
            if file.read_to_end(&mut bytes).is_ok() {
                all.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    }
    all
}

/// Answers that come late, break off or plead for less cost time only.
#[test]
fn faults_of_the_store_cost_time_only() {
    let store = store_with(0);
    for fault in [Action::LoseAnswer, Action::Answer(503), Action::Answer(500), Action::late()] {
        let mut seen = std::collections::HashSet::new();
        let proxy = Proxy::start(&store.url, move |number, line| {
            if seen.insert(line.to_owned()) && number % 10 == 3 { fault } else { Action::Pass(Duration::ZERO) }
        });
        let mirror = Mirror::new(common());
        run(&mirror, &[&at(&proxy.url, "")], &KEYS, &[]).exits(0);
        verified(&mirror.to, common(), 0);
    }
}

/// apt's sources with such addresses, as apt-transport-s3 has them.
#[test]
fn lists_of_sources_in_buckets_are_updated() {
    let store = store_with(0);
    let place = tempfile::tempdir().unwrap();
    let (sources, lists) = (place.path().join("s3.list"), place.path().join("lists"));
    fs::create_dir(&lists).unwrap();
    let key = common().key();
    fs::write(&sources, format!("deb [signed-by={}] {FROM} trixie main\n", key.display())).unwrap();
    let update = |keys: &[(&str, &str)]| {
        let mut command = fullbore_testkit::process::clean_command(env!("CARGO_BIN_EXE_fullbore"));
        command.arg("update").arg("--sources").arg(&sources).arg("--lists").arg(&lists);
        command.env("AWS_EC2_METADATA_DISABLED", "true").env("AWS_ENDPOINT_URL", &store.url).env("HOME", place.path());
        command.envs(keys.iter().copied());
        command.output().unwrap()
    };
    let refused = update(&[KEYS[0], ("AWS_SECRET_ACCESS_KEY", "another")]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("SignatureDoesNotMatch"), "{text}");
    let done = update(&KEYS);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(lists.join("bucket_debian_dists_trixie_InRelease").exists());
}

#[test]
fn commands_that_read_no_buckets_say_what_to_do() {
    let place = tempfile::tempdir().unwrap();
    let mut command = fullbore_testkit::process::clean_command(env!("CARGO_BIN_EXE_fullbore"));
    command.args(["bootstrap", "trixie"]).arg(place.path().join("root")).arg(FROM);
    let refused = command.output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(
        text.contains("cannot read buckets") && text.contains("fullbore mirror --from s3://bucket/debian"),
        "{text}"
    );
}
