//! What docs/guide/fleet.md and the help of `--queue` promise of credentials, certificates and permissions, with a real
//! nats-server, a store and the built program.

use super::accounts::{Operator, permissions, permissions_file};
use super::fleet::{Authority, Nats, Worker, workers};
use super::*;

use std::sync::atomic::{AtomicUsize, Ordering};

use async_nats::{Client, ConnectOptions, Event, RequestErrorKind, ServerError};
use fullbore_testkit::process::clean_command;
use nkeys::KeyPair;

/// How a planner or worker logs in.
#[derive(Clone, Default)]
struct Login {
    flags: Vec<String>,
    variables: Vec<(&'static str, String)>,
}

impl Login {
    fn with(mut self, flag: &str, file: impl AsRef<Path>) -> Login {
        self.flags.extend([flag.to_owned(), file.as_ref().to_str().unwrap().to_owned()]);
        self
    }

    fn flag(mut self, flag: &str) -> Login {
        self.flags.push(flag.to_owned());
        self
    }

    fn password(mut self, user: &str, password: &str) -> Login {
        self.variables =
            vec![("FULLBORE_QUEUE_USER", user.to_owned()), ("FULLBORE_QUEUE_PASSWORD", password.to_owned())];
        self
    }

    fn give(&self, command: &mut Command) {
        command.args(&self.flags).envs(self.variables.iter().map(|(name, value)| (*name, value)));
    }
}

/// `fullbore work QUEUE`, as this user.
fn worker(bucket: &Bucket, queue: &str, login: &Login, more: &[&str]) -> Worker {
    let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
    command.args(["work", queue, "--only", TO, "--endpoint", &bucket.endpoint]).args(more);
    login.give(&mut command);
    command.envs(bucket.keys.iter().copied());
    Worker::start(command)
}

/// `fullbore mirror --queue QUEUE`, as this user.
fn planner(bucket: &Bucket, from: &Server, queue: &str, login: &Login, more: &[&str]) -> Ran {
    let mut command = bucket.planner_of(&[from], queue, more);
    login.give(&mut command);
    bucket.mirror.finish(command)
}

/// `fullbore work QUEUE --status`, as this user.
fn status(queue: &str, login: &Login) -> Ran {
    let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
    command.args(["work", queue, "--status"]);
    login.give(&mut command);
    Mirror::new(common()).finish(command)
}

/// A planner that leaves all files to a worker, and the worker.
#[track_caller]
fn go_well(queue: &str, of_planner: &Login, of_worker: &Login) {
    let (store, server) = (versitygw(), served(0));
    let bucket = Bucket::at(&store.url);
    let worker = worker(&bucket, queue, of_worker, &[]);
    let ran = planner(&bucket, &server, queue, of_planner, &["--no-local"]).exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    assert_eq!((workers(&ran).len(), ran.number("fleet.left_files")), (1, 0), "{ran:?} {}", worker.said());
    assert!(!ran.stderr.contains("warning"), "{ran:?}");
}

/// A planner and a worker that the queue refuses, or that refuse the queue: both end at once, with one error and a hint.
#[track_caller]
fn both_end(queue: &str, login: &Login, error: &str, hint: &str) {
    let (store, server) = (versitygw(), served(0));
    let bucket = Bucket::at(&store.url);
    let ran = planner(&bucket, &server, queue, login, &[]).exits(1);
    assert!(!data(&store).join("dists").exists());
    let said = worker(&bucket, queue, login, &[]).exits(1);
    let looked = status(queue, login).exits(1);
    for said in [ran.stderr, said, looked.stderr] {
        let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(errors.len() == 1 && errors[0].contains(error), "{error}: {said}");
        assert!(said.lines().any(|line| line.starts_with("hint: ") && line.contains(hint)), "{hint}: {said}");
        assert!(["warning", "ERROR", "WARN"].iter().all(|word| !said.contains(word)), "{said}");
    }
}

#[test]
fn a_queue_by_tls_is_used_only_if_its_certificate_is_trusted() {
    let nats = Nats::start_with_tls();
    both_end(&nats.url(), &Login::default(), "certificate issued by an unknown authority", "--cacert");
    let trusting = Login::default().with("--cacert", nats.authority());
    go_well(&nats.url(), &trusting, &trusting);
    // The server asks for TLS whatever the address says.
    let plain = nats.url().replace("tls://", "nats://");
    both_end(&plain, &Login::default(), "certificate issued by an unknown authority", "--cacert");
    status(&plain, &trusting).exits(0);
    let none = Login::default().with("--cacert", nats.file("no-such-file"));
    status(&nats.url(), &none).exits(1).says("no-such-file");
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    let authority = Authority::new();
    let tls = authority.certify("server", "DNS:queue.example.org");
    let nats = Nats::start_at(authority.directory, &format!("tls {{ {tls} }}\n"));
    let trusting = Login::default().with("--cacert", nats.authority());
    both_end(&nats.url(), &trusting, "certificate is for queue.example.org, not for this name", "another name");
}

#[test]
fn a_server_without_tls_is_refused_where_tls_is_asked_for() {
    let nats = Nats::start("");
    let queue = nats.url().replace("nats://", "tls://");
    both_end(&queue, &Login::default(), "cannot trust the queue", "set `tls` in the settings of nats-server");
}

#[test]
fn a_server_that_wants_a_client_certificate_is_shown_one() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let tls = authority.certify("server", "IP:127.0.0.1");
    for one in [&authority, &stranger] {
        one.certify("client", "DNS:worker.example.org");
    }
    let ca = authority.file("ca.pem").display().to_string();
    let nats = Nats::start_at(authority.directory, &format!("tls {{ {tls}, ca_file: \"{ca}\", verify: true }}\n"));
    let trusting = Login::default().with("--cacert", nats.authority());
    let with = |certificate: PathBuf, key: PathBuf| {
        trusting.clone().with("--queue-cert", certificate).with("--queue-key", key)
    };
    both_end(&nats.url(), &trusting, "refuses this client's certificate", "--queue-cert");
    let wrong = with(stranger.file("client.pem"), stranger.file("client.key"));
    both_end(&nats.url(), &wrong, "refuses this client's certificate", "--queue-cert");
    let right = with(nats.file("client.pem"), nats.file("client.key"));
    go_well(&nats.url(), &right, &right);
    let other_key = with(nats.file("client.pem"), stranger.file("client.key"));
    status(&nats.url(), &other_key).exits(1);
    status(&nats.url(), &trusting.clone().with("--queue-cert", nats.file("client.pem"))).exits(1).says("--queue-key");
}

/// A client that logs in by a creds file, and counts the permissions that the server misses.
async fn client(queue: &str, creds: &Path, inboxes: &str) -> (Client, Arc<AtomicUsize>) {
    let refused = Arc::new(AtomicUsize::new(0));
    let counted = refused.clone();
    let options = ConnectOptions::with_credentials_file(creds).await.unwrap().custom_inbox_prefix(inboxes);
    let options = options.request_timeout(Some(Duration::from_secs(1))).event_callback(move |event| {
        if matches!(&event, Event::ServerError(ServerError::Other(said)) if said.starts_with("Permissions Violation")) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        std::future::ready(())
    });
    (options.connect(queue).await.unwrap(), refused)
}

/// An answer of JetStream.
async fn ask(planner: &Client, subject: &str, request: &str) -> serde_json::Value {
    let answer = planner.request(format!("$JS.API.{subject}"), request.to_owned().into()).await.unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

/// Tasks that the queue has.
async fn tasks(planner: &Client) -> u64 {
    let answer = ask(planner, "STREAM.INFO.FULLBORE", "").await;
    answer["state"]["messages"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

/// The last message of a key.
async fn last(planner: &Client, key: &str) -> Option<u64> {
    let request = format!("{{\"last_by_subj\":\"$KV.fullbore.{key}\"}}");
    ask(planner, "STREAM.MSG.GET.KV_fullbore", &request).await["message"]["seq"].as_u64()
}

#[test]
fn with_its_creds_file_a_worker_cannot_add_purge_or_delete_tasks() {
    let (operator, files) = (Operator::new(), tempfile::tempdir().unwrap());
    let file = |name: &str| files.path().join(name);
    for (name, role) in [("planner.creds", "PLANNER"), ("worker.creds", "WORKER")] {
        operator.write_creds(&file(name), &permissions(role), None);
    }
    let nats = Nats::start(&operator.configuration());
    let login = |name: &str| Login::default().with("--queue-creds", file(name));
    go_well(&nats.url(), &login("planner.creds"), &login("worker.creds"));

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (planner, refused_planner) = client(&nats.url(), &file("planner.creds"), "_INBOX_p").await;
        let (worker, refused_worker) = client(&nats.url(), &file("worker.creds"), "_INBOX_w").await;
        for number in 0..3 {
            planner.request(format!("fb.9c1f{number}.q.l"), "{}".into()).await.unwrap();
        }
        planner.request("$KV.fullbore.run.9c1f", "{}".into()).await.unwrap();
        let (before, run) = (tasks(&planner).await, last(&planner, "run.9c1f").await);
        assert!(before == 3 && run.is_some(), "{before} {run:?}");
        let consumer = r#"{"stream_name":"FULLBORE","config":{"durable_name":"x","ack_policy":"explicit"}}"#;
        let forbidden = [
            ("fb.9c1f.q.l", "{}"),
            ("$JS.API.STREAM.PURGE.FULLBORE", ""),
            ("$JS.API.STREAM.DELETE.FULLBORE", ""),
            ("$JS.API.STREAM.MSG.DELETE.FULLBORE", r#"{"seq":1}"#),
            ("$JS.API.STREAM.MSG.GET.FULLBORE", r#"{"seq":1}"#),
            ("$JS.API.STREAM.UPDATE.FULLBORE", r#"{"name":"FULLBORE","subjects":["fb.*.q.*"],"max_msgs":1}"#),
            ("$JS.API.STREAM.CREATE.OTHER", r#"{"name":"OTHER","subjects":["other"]}"#),
            ("$JS.API.CONSUMER.DURABLE.CREATE.FULLBORE.x", consumer),
            ("$JS.API.CONSUMER.DELETE.FULLBORE.x", ""),
            ("$JS.API.STREAM.PURGE.KV_fullbore", ""),
            ("$KV.fullbore.run.9c1f", "{}"),
            ("$KV.fullbore.run.evil", "{}"),
        ];
        for (subject, request) in forbidden {
            let answer = worker.request(subject, request.into()).await;
            assert_eq!(answer.map(drop).unwrap_err().kind(), RequestErrorKind::TimedOut, "{subject}");
        }
        // Answers to others, and tasks on their way to them.
        for subject in ["_INBOX_p.>", "_INBOX.>", "fb.>", "$JS.API.>", ">"] {
            drop(worker.subscribe(subject).await.unwrap());
            worker.flush().await.unwrap();
        }
        worker.request("$KV.fullbore.worker.w1", "{}".into()).await.unwrap();
        let begun = Instant::now();
        while refused_worker.load(Ordering::Relaxed) < forbidden.len() + 5 {
            assert!(begun.elapsed() < Duration::from_secs(10), "{refused_worker:?}");
            tokio::task::yield_now().await;
        }
        assert_eq!((tasks(&planner).await, last(&planner, "run.9c1f").await), (before, run));
        assert_eq!(last(&planner, "run.evil").await, None);
        assert!(last(&planner, "worker.w1").await.is_some());
        // The requests are right: a planner may make them.
        for (subject, request) in forbidden.into_iter().filter(|(subject, _)| subject.starts_with("$JS.API.STREAM.")) {
            planner.request(subject, request.into()).await.unwrap();
            if subject == "$JS.API.STREAM.PURGE.FULLBORE" {
                assert_eq!(tasks(&planner).await, 0);
            }
        }
        let answer = ask(&planner, "STREAM.INFO.FULLBORE", "").await;
        assert!(answer["error"].is_object(), "{answer}");
        assert_eq!(refused_planner.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn creds_files_of_others_or_without_use_are_refused() {
    let (operator, stranger, files) = (Operator::new(), Operator::new(), tempfile::tempdir().unwrap());
    let file = |name: &str| files.path().join(name);
    operator.write_creds(&file("expired.creds"), &permissions("PLANNER"), Some(1_770_000_000));
    stranger.write_creds(&file("stranger.creds"), &permissions("PLANNER"), None);
    operator.write_creds(&file("worker.creds"), &permissions("WORKER"), None);
    let right = fs::read_to_string(file("worker.creds")).unwrap();
    fs::write(file("half.creds"), right.split("-----BEGIN USER").next().unwrap()).unwrap();
    fs::create_dir(file("directory.creds")).unwrap();
    let nats = Nats::start(&operator.configuration());
    let login = |name: &str| Login::default().with("--queue-creds", file(name));
    for name in ["expired.creds", "stranger.creds"] {
        both_end(&nats.url(), &login(name), "the server refuses the credentials", "--queue-creds");
    }
    for name in ["half.creds", "directory.creds", "missing.creds"] {
        status(&nats.url(), &login(name)).exits(1).says(name);
    }
    // Two words that a person may take for each other.
    let (store, server) = (versitygw(), served(0));
    let bucket = Bucket::at(&store.url);
    let ran = planner(&bucket, &server, &nats.url(), &login("worker.creds"), &[]).exits(1);
    assert!(ran.stderr.contains("error: the queue refuses: Permissions Violation for Publish to"), "{ran:?}");
    assert!(ran.stderr.contains("hint: compare the permissions"), "{ran:?}");
}

/// A server with the lists of permissions.conf, and users of its own.
fn with_users(users: &str) -> String {
    let file = permissions_file();
    let (lists, _) = file.split_once("authorization {").unwrap();
    format!("{lists}\nauthorization {{ users: [ {users} ] }}\n")
}

#[test]
fn an_nkey_is_enough_to_log_in() {
    let [planner, worker, stranger] = [(); 3].map(|()| KeyPair::new_user());
    let files = tempfile::tempdir().unwrap();
    let login = |name: &str, text: &str| {
        let file = files.path().join(name);
        fs::write(&file, text).unwrap();
        Login::default().with("--queue-nkey", file)
    };
    let nats = Nats::start(&with_users(&format!(
        "{{ nkey: {}, permissions: $FULLBORE_PLANNER }}, {{ nkey: {}, permissions: $FULLBORE_WORKER }}",
        planner.public_key(),
        worker.public_key()
    )));
    let of_planner = login("planner.nk", &format!("{}\n", planner.seed().unwrap()));
    let of_worker = login("worker.nk", &format!("# of w1\n{}\n{}\n", worker.public_key(), worker.seed().unwrap()));
    go_well(&nats.url(), &of_planner, &of_worker);
    let wrong = login("stranger.nk", &stranger.seed().unwrap());
    both_end(&nats.url(), &wrong, "the server refuses the credentials", "--queue-nkey");
    let mut damaged = planner.seed().unwrap();
    let last = damaged.pop().unwrap();
    damaged.push(if last == 'A' { 'B' } else { 'A' });
    let damaged = login("damaged.nk", &damaged);
    both_end(&nats.url(), &damaged, "cannot use the seed of the NKey", "56 more letters");
}

/// The settings of a server in the guide, with files of this test.
fn settings_of_the_guide(authority: &Authority) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/fleet.md");
    let guide = fs::read_to_string(path).unwrap();
    let (_, rest) = guide.split_once("# /etc/nats/nats.conf\n").expect("the settings of a server");
    let lines = rest.lines().map_while(|line| line.strip_prefix("    "));
    let settings = lines.collect::<Vec<_>>().join("\n") + "\n";
    let [store, certificate, key] = ["store", "server.pem", "server.key"].map(|name| authority.file(name));
    let mut changed = settings.clone();
    for (from, to) in [("/var/lib/nats", store), ("/etc/nats/cert.pem", certificate), ("/etc/nats/key.pem", key)] {
        assert!(changed.contains(from), "{from} in {settings}");
        changed = changed.replace(from, &format!("\"{}\"", to.display()));
    }
    assert!(changed.contains("include permissions.conf"), "{settings}");
    changed
}

#[test]
fn the_guide_s_server_serves_a_planner_and_a_worker_by_password() {
    let authority = Authority::new();
    authority.certify("server", "IP:127.0.0.1");
    let settings = settings_of_the_guide(&authority);
    fs::write(authority.file("permissions.conf"), permissions_file()).unwrap();
    let nats = Nats::start_at(authority.directory, &settings);
    let login =
        |user: &str, password: &str| Login::default().with("--cacert", nats.authority()).password(user, password);
    let [of_planner, of_worker] = [login("planner", "planner-password"), login("worker", "worker-password")];
    go_well(&nats.url(), &of_planner, &of_worker);
    status(&nats.url(), &of_worker).exits(0).prints("no run");

    // Each of the refused commands asks once.
    let refused = || nats.log().matches("authentication error").count();
    let before = refused();
    let begun = Instant::now();
    let wrong = login("worker", "mistyped-password");
    both_end(&nats.url(), &wrong, "the server refuses the credentials", "FULLBORE_QUEUE_PASSWORD");
    let nobody = Login::default().with("--cacert", nats.authority());
    both_end(&nats.url(), &nobody, "the server refuses the credentials", "--queue-creds");
    assert_eq!(refused() - before, 6, "{}", nats.log());
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());

    // A planner's user has other inboxes than a worker.
    let (store, url) = (versitygw(), nats.url());
    let said = worker(&Bucket::at(&store.url), &url, &of_planner, &[]).exits(1);
    assert!(said.contains("error: the queue refuses: Permissions Violation for Subscription"), "{said}");
    let half = Login { variables: of_worker.variables[..1].to_vec(), ..of_worker };
    status(&url, &half).exits(1).says("FULLBORE_QUEUE_PASSWORD is not set");
}

#[test]
fn a_worker_whose_password_is_changed_ends_after_half_a_minute() {
    let mut nats = Nats::start(&permissions_file());
    let (store, url) = (versitygw(), nats.url());
    let bucket = Bucket::at(&store.url);
    let mut worker = worker(&bucket, &url, &Login::default().password("worker", "worker-password"), &[]);
    let of_planner = Login::default().password("planner", "planner-password");
    planner(&bucket, &served(0), &url, &of_planner, &["--no-local"]).exits(0);
    nats.kill();
    let settings = fs::read_to_string(nats.file("nats.conf")).unwrap();
    fs::write(nats.file("nats.conf"), settings.replace("$FULLBORE_WORKER_PASSWORD", "another-password")).unwrap();
    nats.start_again();
    let said = worker.exits(1);
    assert!(said.contains("error: the queue refuses: the server does not accept the credentials any more"), "{said}");
}

#[test]
fn credentials_go_to_other_machines_in_clear_text_only_if_told_so() {
    let nats = Nats::start(&permissions_file());
    let files = tempfile::tempdir().unwrap();
    let (creds, nkey) = (files.path().join("w.creds"), files.path().join("w.nk"));
    Operator::new().write_creds(&creds, &permissions("WORKER"), None);
    fs::write(&nkey, KeyPair::new_user().seed().unwrap()).unwrap();
    let authority = Authority::new();
    authority.certify("client", "DNS:w1");
    let password = Login::default().password("worker", "worker-password");
    let certificate = Login::default().with("--queue-cert", authority.file("client.pem"));
    // Leads to this machine, and is no address of loopback.
    let elsewhere = nats.url().replace("127.0.0.1", "0.0.0.0");
    for login in [
        password.clone(),
        Login::default().with("--queue-creds", &creds),
        Login::default().with("--queue-nkey", &nkey),
        certificate.with("--queue-key", authority.file("client.key")),
    ] {
        both_end(&elsewhere, &login, "the connection has no TLS", "--queue-insecure");
        both_end("nats://queue.example.org:4222", &login, "the connection has no TLS", "use tls://");
    }
    assert!(!nats.log().contains("authentication error"), "{}", nats.log());
    status(&elsewhere, &password.clone().flag("--queue-insecure")).exits(0);
    status(&nats.url(), &password).exits(0);
    status(&nats.url().replace("127.0.0.1", "localhost"), &password).exits(0);
    let hidden = "tls://worker:worker-password@queue.example.org";
    let ran = status(hidden, &Login::default()).exits(1).says("FULLBORE_QUEUE_PASSWORD");
    assert!(!ran.stderr.contains("worker-password"), "{ran:?}");
}

#[test]
fn no_secret_is_in_output_logs_reports_or_command_lines() {
    let (operator, files) = (Operator::new(), tempfile::tempdir().unwrap());
    let (creds, nkey) = (files.path().join("w.creds"), files.path().join("w.nk"));
    let [token, creds_seed] = operator.write_creds(&creds, &permissions("WORKER"), None);
    let user = KeyPair::new_user();
    fs::write(&nkey, user.seed().unwrap()).unwrap();
    let by_token = Nats::start(&operator.configuration());
    let by_key = Nats::start(&with_users(&format!(
        "{{ nkey: {}, permissions: $FULLBORE_WORKER }}, {{ user: planner, password: planner-password, permissions: $FULLBORE_PLANNER }}, \
         {{ user: worker, password: worker-password, permissions: $FULLBORE_WORKER }}",
        user.public_key()
    )));
    let password = |role: &str| Login::default().password(role, &format!("{role}-password"));
    let secrets = [token, creds_seed, user.seed().unwrap(), "worker-password".into(), "planner-password".into()];
    let hides = |what: &str, text: &str| {
        assert!(!text.is_empty(), "{what}");
        secrets.iter().for_each(|secret| assert!(!text.contains(secret.as_str()), "{secret} in {what}: {text}"));
    };
    let (store, server) = (versitygw(), served(0));
    let bucket = Bucket::at(&store.url);
    let logged = |login: Login| Login {
        variables: [login.variables, vec![("FULLBORE_LOG", "trace".to_owned())]].concat(),
        ..login
    };
    let started: Vec<Worker> = [
        (&by_token, Login::default().with("--queue-creds", &creds)),
        (&by_key, Login::default().with("--queue-nkey", &nkey)),
        (&by_key, password("worker")),
    ]
    .map(|(nats, login)| worker(&bucket, &nats.url(), &logged(login), &["--json"]))
    .into();
    let metrics = files.path().join("metrics.prom");
    let more = ["--json", "--metrics", metrics.to_str().unwrap()];
    let ran = planner(&bucket, &server, &by_key.url(), &logged(password("planner")), &more).exits(0);
    hides("planner", &(ran.stdout + &ran.stderr + &ran.report.to_string()));
    hides("metrics", &fs::read_to_string(metrics).unwrap());
    for mut worker in started {
        hides("command line", &worker.command_line());
        worker.signal("TERM");
        hides("worker", &(worker.exits(0) + &worker.printed()));
    }
    // Those that are refused.
    for (nats, login) in [
        (&by_key, Login::default().with("--queue-creds", &creds)),
        (&by_token, Login::default().with("--queue-nkey", &nkey)),
        (&by_token, password("worker")),
    ] {
        let ran = status(&nats.url(), &logged(login)).exits(1);
        hides("refused", &(ran.stdout + &ran.stderr));
    }
}
