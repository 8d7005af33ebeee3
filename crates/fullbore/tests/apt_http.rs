//! The real apt with our http and https methods: the same files as with its own, also from mirrors
//! of which some drip, lie, are behind, or are dead.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use fullbore_testkit::archive::{Archive, ArchiveBuilder};
use fullbore_testkit::server::{Fault, FaultRule, Life, PathMatch, Server, TestCa, TlsSpec};
use harness::apt::{Apt, Ran, give_to_apt, passable, program};
use harness::{need, need_verifier, remove_at_exit, signer, stranger};
use tempfile::TempDir;

/// An archive whose packages can be installed, in two states, that nobody changes.
fn archive() -> &'static Archive {
    static ARCHIVE: OnceLock<Archive> = OnceLock::new();
    ARCHIVE.get_or_init(|| {
        need("apt-get", "apt");
        need_verifier();
        let directory = passable().keep();
        remove_at_exit(directory.clone());
        let builder = ArchiveBuilder::tiny(directory.join("archive")).signer(signer());
        builder.installable(true).odd_names(false).states(2).churn(0.5).build().unwrap()
    })
}

/// A private apt for the archive at this address.
struct Client {
    apt: Apt,
    directory: TempDir,
}

impl Client {
    fn new(url: &str) -> Client {
        let directory = passable();
        let apt = Apt::new(directory.path().join("apt"), url, &archive().key());
        // Sources, too.
        let sources = apt.directory.join("etc/test.sources");
        let entry = std::fs::read_to_string(&sources).unwrap().replace("Types: deb\n", "Types: deb deb-src\n");
        std::fs::write(&sources, entry).unwrap();
        Client { apt, directory }
    }

    /// With our methods; an address per mirror, the origin first.
    fn ours(mirrors: &[&Server]) -> Client {
        let client = Client::new(&mirrors[0].url());
        let list = client.directory.path().join("mirrors");
        std::fs::write(&list, mirrors.iter().map(|mirror| mirror.url() + "\n").collect::<String>()).unwrap();
        let methods = ["http", "https"].map(|name| (name, program(client.directory.path(), name)));
        let Client { mut apt, directory } = client;
        for (name, path) in methods {
            apt = apt.option(&format!("Dir::Bin::Methods::{name}"), path.display());
        }
        let apt = apt.option("Acquire::fullbore::Mirrors", list.display()).option("Acquire::Max-Pipeline-Depth", 1000);
        Client { apt, directory }
    }

    fn with(self, name: &str, value: impl std::fmt::Display) -> Client {
        Client { apt: self.apt.option(name, value), ..self }
    }

    fn update(&self) -> Ran {
        self.apt.update(&[])
    }

    /// Fetches these packages anew.
    fn install(&self, packages: &[String]) -> Ran {
        let mut arguments = vec!["install", "-y", "--download-only"];
        arguments.extend(packages.iter().map(String::as_str));
        self.apt.get(&arguments)
    }

    /// Fetches the sources of these, into a directory of their own.
    fn source(&self, packages: &[String]) -> Ran {
        let here = self.directory.path().join("sources");
        std::fs::create_dir_all(&here).unwrap();
        give_to_apt(&here);
        let mut command = self.apt.command("apt-get");
        Ran::of(command.args(["source", "--download-only"]).args(packages).current_dir(&here).output().unwrap())
    }

    /// All that apt has fetched, by the part of the name that does not depend on the address.
    fn fetched(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for part in ["apt/lists", "apt/archives", "sources"] {
            let Ok(entries) = std::fs::read_dir(self.directory.path().join(part)) else { continue };
            for path in entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                let name = name.split_once("_dists_").map_or(name.clone(), |(_, rest)| rest.to_owned());
                if name != "lock" {
                    files.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
        assert!(!files.is_empty());
        files
    }

    /// Everything that users do, once, and all of it well.
    fn everything(&self, state: usize) -> BTreeMap<String, Vec<u8>> {
        self.update().well();
        self.install(&names(state, "main/binary-amd64/Packages")).well();
        self.source(&names(state, "main/source/Sources")).well();
        self.fetched()
    }
}

/// Names of packages in an index.
fn names(state: usize, index: &str) -> Vec<String> {
    let index = archive().forge(state, "trixie").index(index).unwrap();
    let names: Vec<String> =
        index.lines().filter_map(|line| line.strip_prefix("Package: ").map(str::to_owned)).take(12).collect();
    assert!(!names.is_empty());
    names
}

fn server(state: usize) -> Server {
    Server::start(&archive().state(state).root).unwrap()
}

/// What apt's own method fetches of this state.
fn by_apt(state: usize) -> &'static BTreeMap<String, Vec<u8>> {
    static FETCHED: [OnceLock<BTreeMap<String, Vec<u8>>>; 2] = [const { OnceLock::new() }; 2];
    FETCHED[state].get_or_init(|| {
        let server = server(state);
        Client::new(&server.url()).everything(state)
    })
}

#[track_caller]
fn assert_same(ours: &BTreeMap<String, Vec<u8>>, theirs: &BTreeMap<String, Vec<u8>>) {
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (name, content) in ours {
        assert!(*content == theirs[name], "{name} differs");
    }
}

#[test]
fn files_are_the_same_as_with_apts_own_methods() {
    let theirs = by_apt(0);
    let origin = server(0);
    let client = Client::ours(&[&origin]);
    assert_same(&client.everything(0), theirs);
    let before = origin.take_log().len();
    assert!(before > 0);
    let ran = client.update().well();
    assert!(ran.text.contains("Hit:1"), "{}", ran.text);
    assert_eq!(origin.take_log().len(), 1, "one round trip where nothing is new");
    origin.switch_root(&archive().state(1).root);
    std::fs::remove_dir_all(client.directory.path().join("sources")).unwrap();
    client.apt.get(&["clean"]).well();
    assert_same(&client.everything(1), by_apt(1));
}

#[test]
fn mirrors_that_drip_lie_lack_files_or_are_dead_change_no_file() {
    let theirs = by_apt(1);
    let any = |fault| FaultRule::always(PathMatch::Any, fault);
    type Spoil<'a> = &'a dyn Fn(&Server);
    let bad: [(&str, Spoil); 6] = [
        ("drips", &|server| server.change(|own| own.rate_bytes_per_s = Some(20_000))),
        ("lies", &|server| server.add_fault(any(Fault::Corrupt))),
        ("is behind", &|server| server.switch_root(&archive().state(0).root)),
        ("is dead", &|server| server.live(Life::Refusing)),
        ("lacks files", &|server| server.add_fault(FaultRule::pool(0.5, Fault::Status(404)))),
        ("is a portal", &|server| server.add_fault(any(Fault::Portal))),
    ];
    let good = server(1);
    // Some as mirrors beside a good origin, others as origin themselves, and all at once.
    for (origin_is_bad, some) in [(false, &bad[0..2]), (true, &bad[2..4]), (true, &bad[4..6]), (true, &bad[..])] {
        let servers: Vec<Server> = some
            .iter()
            .map(|(_, spoil)| {
                let server = server(1);
                spoil(&server);
                server
            })
            .collect();
        let mut mirrors: Vec<&Server> = servers.iter().collect();
        mirrors.insert(if origin_is_bad { mirrors.len() } else { 0 }, &good);
        let client = Client::ours(&mirrors);
        let ours = client.everything(1);
        let what: Vec<&str> = some.iter().map(|(what, _)| *what).collect();
        println!("{what:?}, origin bad: {origin_is_bad}");
        assert_same(&ours, theirs);
    }
}

#[test]
fn a_mirror_is_used_beside_the_origin() {
    // Slow enough that one alone would not have brought everything before the other is asked.
    let servers = [server(0), server(0)];
    for server in &servers {
        server.change(|own| own.rate_bytes_per_s = Some(80_000));
    }
    let client = Client::ours(&[&servers[0], &servers[1]]);
    client.everything(0);
    for server in &servers {
        assert!(server.log().iter().any(|entry| entry.path.starts_with("/pool/")));
    }
}

#[test]
fn nothing_older_than_apts_files_is_taken() {
    let (origin, mirror) = (server(1), server(1));
    let client = Client::ours(&[&origin, &mirror]);
    client.update().well();
    let newest = client.fetched();
    for server in [&origin, &mirror] {
        server.switch_root(&archive().state(0).root);
    }
    let ran = client.update().well();
    assert!(ran.text.contains("Hit:1"), "{}", ran.text);
    assert_same(&client.fetched(), &newest);
    // The origin alone is behind: the mirror's is taken.
    mirror.switch_root(&archive().state(1).root);
    let other = Client::ours(&[&origin, &mirror]);
    other.update().well();
    assert_same(&other.fetched(), &newest);
}

#[test]
fn redirects_are_followed_and_credentials_stay_with_their_host() {
    let theirs = by_apt(0);
    let elsewhere = server(0);
    let origin = server(0);
    origin.add_fault(FaultRule::always(PathMatch::Prefix("/pool/".into()), Fault::Redirect(elsewhere.url())));
    let client = Client::ours(&[&origin]);
    // Files of one site: it is the only one in its set.
    assert_same(&client.everything(0), theirs);
    assert!(elsewhere.log().iter().all(|entry| entry.path.starts_with("/pool/")));
    let closed = server(0);
    closed.change(|own| own.authorization = Some("Basic dXNlcjp3b3Jk".into()));
    let client = Client::ours(&[&closed, &elsewhere]);
    let auth = client.directory.path().join("auth.conf");
    std::fs::write(&auth, format!("machine {}/ login user password word\n", closed.url())).unwrap();
    // As on a real system: root's alone.
    std::fs::set_permissions(&auth, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let client = client.with("Dir::Etc::netrc", auth.display());
    elsewhere.take_log();
    assert_same(&client.everything(0), theirs);
    let sent = |server: &Server| {
        server
            .log()
            .iter()
            .any(|entry| entry.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")))
    };
    assert!(sent(&closed) && !sent(&elsewhere));
}

#[test]
fn files_come_by_https_and_by_a_proxy() {
    let theirs = by_apt(0);
    let authority = TestCa::new().unwrap();
    let secure =
        Server::builder(&archive().state(0).root).tls(&authority, &TlsSpec::default()).unwrap().start().unwrap();
    let client = Client::ours(&[&secure]);
    let ran = client.update();
    assert!(ran.text.contains("certificate issued by an unknown authority"), "{}", ran.text);
    let ca = client.directory.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    let client = client.with("Acquire::https::CaInfo", ca.display());
    assert_same(&client.everything(0), theirs);
    // The test server takes requests for other hosts: a proxy that has it all.
    let proxy = server(0);
    let client = Client::new("http://nowhere.invalid");
    let http = program(client.directory.path(), "http");
    let client = client.with("Dir::Bin::Methods::http", http.display()).with("Acquire::http::Proxy", proxy.url());
    assert_same(&client.everything(0), theirs);
}

#[test]
fn onion_names_are_refused_at_once_and_left_to_a_proxy() {
    let refusal = |ran: &Ran| ran.text.to_lowercase().contains("direct connection to .onion domains is blocked");
    for url in ["http://x.onion", "https://x.onion", "http://a.x.ONION"] {
        let theirs = Client::new(url).update();
        // apt knows the name in small letters only.
        assert!(refusal(&theirs) || url.ends_with("ONION"), "{}", theirs.text);
        let client = Client::new(url);
        let methods = ["http", "https"].map(|name| (name, program(client.directory.path(), name)));
        let client = methods
            .iter()
            .fold(client, |client, (name, path)| client.with(&format!("Dir::Bin::Methods::{name}"), path.display()));
        let begun = Instant::now();
        let ours = client.update();
        assert!(refusal(&ours), "{}", ours.text);
        assert_eq!(ours.code, theirs.code, "{}", ours.text);
        // Six failures of a name that is not there take 8 s.
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    let proxy = server(0);
    let client = Client::new("http://x.onion");
    let http = program(client.directory.path(), "http");
    let client = client.with("Dir::Bin::Methods::http", http.display()).with("Acquire::http::Proxy", proxy.url());
    assert_same(&client.everything(0), by_apt(0));
}

#[test]
fn failures_name_mirrors_and_reasons() {
    let (origin, mirror) = (server(0), server(0));
    let client = Client::ours(&[&origin, &mirror]);
    client.update().well();
    let packages = names(0, "main/binary-amd64/Packages");
    let pool = |fault| FaultRule::always(PathMatch::Prefix("/pool/".into()), fault);
    origin.add_fault(pool(Fault::Status(404)));
    mirror.add_fault(pool(Fault::Corrupt));
    let ran = client.install(&packages[..1]);
    let names = [&origin, &mirror].map(|server| server.address().to_string());
    assert_eq!(ran.code, Some(100), "{}", ran.text);
    assert!(
        ran.text.contains(&format!("{}: 404  Not Found; {}: Hash Sum mismatch", names[0], names[1])),
        "{}",
        ran.text
    );
    // What is not there is no reason to distrust what apt has.
    origin.live(Life::Refusing);
    mirror.live(Life::Refusing);
    let before = client.fetched();
    let ran = client.update();
    assert!(ran.text.contains("old ones used instead"), "{}", ran.text);
    assert_same(&client.fetched(), &before);
}

#[test]
fn wrong_content_of_all_mirrors_is_called_wrong() {
    let packages = names(0, "main/binary-amd64/Packages");
    for (faults, said) in [
        ([Fault::Corrupt, Fault::Corrupt], ["Hash Sum mismatch", "Hash Sum mismatch"]),
        ([Fault::Status(404), Fault::Portal], ["404  Not Found", "File has unexpected size"]),
        ([Fault::LongLength, Fault::Corrupt], ["File has unexpected size", "Hash Sum mismatch"]),
    ] {
        let servers = [server(0), server(0)];
        let client = Client::ours(&[&servers[0], &servers[1]]);
        client.update().well();
        let spoil = |part: &str| {
            for (server, fault) in servers.iter().zip(&faults) {
                server.add_fault(FaultRule::always(PathMatch::Contains(part.into()), fault.clone()));
            }
        };
        let told = |ran: &Ran| {
            assert_eq!(ran.code, Some(100), "{faults:?}: {}", ran.text);
            for (server, said) in servers.iter().zip(said) {
                let says = |text: &str| ran.text.contains(&format!("{}: {text}", server.address()));
                // A host that is given up for it says why.
                let is_out = said.contains("size") && says("3 times in a row: wrong answer: file has ");
                assert!(says(said) || is_out, "{faults:?}: {}", ran.text);
            }
        };
        spoil("/pool/");
        told(&client.install(&packages[..1]));
        assert!(client.fetched().keys().all(|name| !name.ends_with(".deb")), "{faults:?}");
        // Indexes of the next state.
        let before = client.fetched();
        servers.iter().for_each(|server| server.switch_root(&archive().state(1).root));
        spoil("by-hash");
        spoil("/Packages");
        told(&client.update());
        assert_same(&client.fetched(), &before);
    }
}

/// apt asks the method, and looks at the date itself.
#[test]
fn a_release_of_the_future_is_refused_and_no_mirrors_wins() {
    let directory = passable();
    let builder = ArchiveBuilder::tiny(directory.path().join("archive")).signer(signer());
    let far = builder.installable(true).odd_names(false).states(2).churn(0.5).build().unwrap();
    far.forge(1, "trixie").set_field("Date", "Thu, 01 Jan 2060 00:00:00 UTC").unwrap();
    let [right, future] = [0, 1].map(|state| Server::start(&far.state(state).root).unwrap());
    let client = Client::ours(&[&future]);
    let ran = client.update();
    assert!(ran.code == Some(100) && ran.text.contains("is not valid yet"), "{}", ran.text);
    let client = client.with("Acquire::Max-FutureTime", 2_000_000_000);
    client.update().well();
    for order in [[&right, &future], [&future, &right]] {
        let client = Client::ours(&order);
        client.update().well();
        let release = std::fs::read(far.state(0).root.join("dists/trixie/InRelease")).unwrap();
        assert!(client.fetched().values().any(|content| *content == release), "{:?}", client.fetched().keys());
    }
}

/// With apt's own method, which asks the origin alone, the update goes well.
#[test]
fn a_mirror_with_a_release_by_a_stranger_freezes_nothing() {
    let stranger = stranger();
    for without_inrelease in [false, true] {
        let directory = passable();
        let builder = ArchiveBuilder::tiny(directory.path().join("archive")).signer(signer());
        let own = builder.installable(true).odd_names(false).states(3).churn(0.5).build().unwrap();
        let later = own.forge(2, "trixie").signed_by(&stranger);
        later.set_release(&later.release().unwrap()).unwrap();
        let [origin, mirror] = [0, 0].map(|state| Server::start(&own.state(state).root).unwrap());
        if without_inrelease {
            for server in [&origin, &mirror] {
                server.add_fault(FaultRule::always(PathMatch::Suffix("/InRelease".into()), Fault::Status(404)));
            }
        }
        let client = Client::ours(&[&origin, &mirror]);
        client.update();
        origin.switch_root(&own.state(1).root);
        mirror.switch_root(&own.state(2).root);
        let ran = client.update();
        assert!(ran.code == Some(0) && !ran.text.contains("previous index"), "{}", ran.text);
        let name = if without_inrelease { "Release" } else { "InRelease" };
        let release = std::fs::read(own.state(1).root.join("dists/trixie").join(name)).unwrap();
        assert!(client.fetched().values().any(|content| *content == release), "{:?}", client.fetched().keys());
        // The same mirror with the right key is used.
        let right = own.forge(2, "trixie");
        right.set_release(&right.release().unwrap()).unwrap();
        let ran = client.update();
        let release = std::fs::read(own.state(2).root.join("dists/trixie").join(name)).unwrap();
        assert!(client.fetched().values().any(|content| *content == release), "{}", ran.text);
    }
}

/// Processes that run this program file.
fn running(program: &Path) -> Vec<i32> {
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let runs = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).next() == Some(program.as_os_str().as_encoded_bytes())
    };
    processes.filter(runs).collect()
}

#[test]
fn after_a_kill_the_next_run_is_clean() {
    let origin = server(0);
    let client = Client::ours(&[&origin]);
    client.update().well();
    let packages = names(0, "main/binary-amd64/Packages");
    // apt calls a method by its name in apt's own directory, whatever program that is.
    let methods = client.directory.path().join("methods");
    std::fs::create_dir(&methods).unwrap();
    let method = methods.join("http");
    let _ = program(&methods, "http");
    let client = client.with("Dir::Bin::Methods", methods.display());
    for after_bytes in [1, 50_000] {
        client.apt.get(&["clean"]).well();
        origin.change(|own| own.rate_bytes_per_s = Some(60_000));
        let begun = origin.counters().body_bytes;
        let killed = std::thread::scope(|scope| {
            let install = scope.spawn(|| client.install(&packages));
            let pid = loop {
                let running = running(&method);
                if origin.counters().body_bytes >= begun + after_bytes && !running.is_empty() {
                    break running[0];
                }
                assert!(!install.is_finished(), "it has ended before it could be killed");
                std::thread::sleep(std::time::Duration::from_millis(2));
            };
            let status = Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
            assert!(status.success());
            install.join().unwrap()
        });
        assert_ne!(killed.code, Some(0), "{}", killed.text);
        origin.change(|own| own.rate_bytes_per_s = None);
        client.install(&packages).well();
        let partial = client.apt.directory.join("archives/partial");
        assert_eq!(std::fs::read_dir(partial).unwrap().count(), 0);
    }
    // All of it was right, or apt would have said so; and the same as apt's own.
    let theirs = by_apt(0);
    for (name, content) in client.fetched() {
        assert!(theirs.get(&name).is_none_or(|theirs| *theirs == content), "{name}");
    }
}

/// A private apt with its own methods, or with ours and no mirrors.
fn either(url: &str, is_ours: bool) -> Client {
    let client = Client::new(url);
    if !is_ours {
        return client;
    }
    let method = program(client.directory.path(), "http");
    client.with("Dir::Bin::Methods::http", method.display())
}

/// The paths that a server was asked for, in order.
fn asked(server: &Server) -> Vec<String> {
    let mut paths: Vec<String> = server.take_log().into_iter().map(|entry| entry.path).collect();
    paths.sort();
    paths
}

/// What `apt-get update` and then a download come to where everything is answered with this status: exit codes and what
/// the server was asked for.
fn refused_with(status: u16, retries: u32, is_ours: bool) -> [(Option<i32>, Vec<String>); 2] {
    let server = server(0);
    let client = either(&server.url(), is_ours).with("Acquire::Retries", retries);
    // The number of tries is apt's; its pauses would only cost time.
    let client = client.with("Acquire::Retries::Delay", "false");
    server.add_fault(FaultRule::always(PathMatch::Any, Fault::Status(status)));
    let update = client.update().code;
    let of_update = asked(&server);
    server.change(|own| own.faults.clear());
    client.update().well();
    server.add_fault(FaultRule::always(PathMatch::Prefix("/pool/".into()), Fault::RetryAfter { status, seconds: 60 }));
    server.take_log();
    let install = client.install(&names(0, "main/binary-amd64/Packages")).code;
    [(update, of_update), (install, asked(&server))]
}

#[test]
fn every_status_is_repeated_as_often_as_by_apts_own_method() {
    let begun = Instant::now();
    let mut cases: Vec<(u16, u32)> =
        [400, 401, 403, 404, 408, 410, 418, 429, 451, 500, 501, 502, 503, 504, 505, 511, 599]
            .map(|status| (status, 0))
            .to_vec();
    cases.extend([(408, 3), (429, 3), (503, 3), (511, 3), (599, 3)]);
    for (status, retries) in cases {
        let [theirs, ours] = [false, true].map(|is_ours| refused_with(status, retries, is_ours));
        assert_eq!(ours, theirs, "{status}, {retries} retries");
    }
    // Each of the 22 cases once waited for half a minute.
    assert!(begun.elapsed() < Duration::from_secs(240), "{:?}", begun.elapsed());
}

#[test]
fn a_failed_connection_is_told_in_apts_words() {
    let server = server(0);
    let refused = server.url();
    server.live(Life::Refusing);
    for url in [refused.as_str(), "http://nosuchhost.invalid/"] {
        let words = |is_ours: bool| {
            let client = either(url, is_ours).with("Debug::pkgAcquire::Worker", 1);
            let begun = Instant::now();
            let ran = client.update();
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
            let word = |field: &str| {
                let (_, rest) =
                    ran.text.split_once(&format!("%0a{field}:%20")).unwrap_or_else(|| panic!("{}", ran.text));
                rest.chars().take_while(char::is_ascii_alphanumeric).collect::<String>()
            };
            (ran.code, word("FailReason"), word("Transient-Failure"))
        };
        assert_eq!(words(true), words(false), "{url}");
    }
}

#[test]
fn a_busy_mirror_costs_no_pause_where_another_is() {
    for busy in [0, 1] {
        let servers = [server(0), server(0)];
        servers[busy].add_fault(FaultRule::always(PathMatch::Any, Fault::RetryAfter { status: 503, seconds: 50 }));
        let begun = Instant::now();
        assert_same(&Client::ours(&[&servers[0], &servers[1]]).everything(0), by_apt(0));
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    }
}

#[test]
fn apt_hears_at_once_that_all_mirrors_are_busy() {
    let servers = [server(0), server(0)];
    let client = Client::ours(&[&servers[0], &servers[1]]).with("Acquire::Retries", 2);
    let client = client.with("Acquire::Retries::Delay", "false");
    client.update().well();
    for (server, status) in servers.iter().zip([503, 429]) {
        server.take_log();
        let fault = Fault::RetryAfter { status, seconds: 50 };
        server.add_fault(FaultRule::always(PathMatch::Prefix("/pool/".into()), fault));
    }
    let packages = names(0, "main/binary-amd64/Packages");
    let begun = Instant::now();
    let ran = client.install(&packages);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(ran.code, Some(100), "{}", ran.text);
    assert!(
        ran.text.contains("503  Service Unavailable") && ran.text.contains("429  Too Many Requests"),
        "{}",
        ran.text
    );
    for server in &servers {
        // Once for each time that apt asks, and no more.
        let mut times = BTreeMap::new();
        asked(server).into_iter().for_each(|path| *times.entry(path).or_insert(0) += 1);
        assert!(times.len() >= packages.len() && times.values().all(|times| *times == 3), "{times:?}");
    }
}
