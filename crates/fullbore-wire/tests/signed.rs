//! Hosts that want their requests signed: moves, certificates, and credentials that end while files come.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server, TestCa, TlsSpec};
use fullbore_wire::http1::{RequestHead, ResponseHead};
use fullbore_wire::signer::{Denial, Judgement, Preparing, SignedMirror, Signer};
use fullbore_wire::tls::{Authorities, Tls, Trust};
use fullbore_wire::url::Url;

/// What a signer says of refusals.
#[derive(Debug)]
enum Says {
    /// Their status counts.
    Status,
    /// The host is at this address now.
    Moved(Url),
    /// The credentials have ended.
    Expired,
}

#[derive(Debug)]
struct TestSigner {
    address: Mutex<Url>,
    says: Says,
    /// The signature after which the credentials have ended.
    last_signature: u64,
    signatures: AtomicU64,
    is_prepared: AtomicBool,
    is_due: AtomicBool,
    /// There are other credentials as soon as this file is there.
    awaited: PathBuf,
}

impl TestSigner {
    fn at(url: &str, says: Says) -> TestSigner {
        TestSigner {
            address: Mutex::new(Url::parse(url).unwrap()),
            says,
            last_signature: u64::MAX,
            signatures: AtomicU64::new(0),
            is_prepared: AtomicBool::new(true),
            is_due: AtomicBool::new(false),
            awaited: PathBuf::new(),
        }
    }

    fn setup(self, tls: Option<Tls>) -> Setup {
        let mut setup = Setup::default();
        setup.options.signed = vec![SignedMirror { signer: Arc::new(self), tls }];
        setup
    }
}

impl Signer for TestSigner {
    fn address(&self) -> Url {
        self.address.lock().unwrap().clone()
    }

    fn name(&self) -> String {
        "store".to_owned()
    }

    fn encode(&self, path: &str) -> String {
        path.to_owned()
    }

    fn is_prepared(&self) -> bool {
        self.is_prepared.load(Ordering::SeqCst)
    }

    fn is_due(&self) -> bool {
        !self.is_prepared() || self.is_due.load(Ordering::SeqCst)
    }

    fn prepare(&self) -> Preparing<'_> {
        Box::pin(async {
            while !self.awaited.exists() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            self.is_prepared.store(true, Ordering::SeqCst);
            self.is_due.store(false, Ordering::SeqCst);
            Ok(())
        })
    }

    fn sign(&self, _head: &mut RequestHead, _address: &Url) -> u64 {
        let number = self.signatures.fetch_add(1, Ordering::SeqCst) + 1;
        if number == self.last_signature {
            self.is_prepared.store(false, Ordering::SeqCst);
        }
        number
    }

    fn judge(&self, _signature: u64, _head: &ResponseHead, _body: &[u8]) -> Judgement {
        let denial = Denial { why: "refused".to_owned(), hint: "" };
        match &self.says {
            Says::Status => Judgement::Status(None),
            Says::Moved(url) => {
                *self.address.lock().unwrap() = url.clone();
                Judgement::Moved(denial)
            }
            Says::Expired => {
                self.is_prepared.store(false, Ordering::SeqCst);
                Judgement::Again(denial)
            }
        }
    }
}

fn secure(tree: &Tree, authority: &TestCa) -> Server {
    tree.server().tls(authority, &TlsSpec { http2: false, ..TlsSpec::default() }).unwrap().start().unwrap()
}

fn tls_of(authority: &TestCa) -> Option<Tls> {
    let authorities = Authorities::parse(authority.pem().as_bytes(), Path::new("test.pem")).unwrap();
    Some(Tls::new(Trust::Only(authorities)))
}

/// The same server under another name.
fn other_name(server: &Server) -> String {
    server.url().replace("localhost", "127.0.0.1")
}

#[test]
fn the_authority_of_a_store_counts_wherever_the_store_moves() {
    let authority = TestCa::new().unwrap();
    let tree = Tree::of(&[1000, 50_000, 3]);
    let (first, second) = (secure(&tree, &authority), secure(&tree, &authority));
    first.add_fault(FaultRule::always(PathMatch::Any, Fault::Status(400)));
    let signer = TestSigner::at(&first.url(), Says::Moved(Url::parse(&other_name(&second)).unwrap()));
    let ran = signer.setup(tls_of(&authority)).client(&[first.url()]).fetch(&tree);
    ran.all_verified(&tree);
    assert!(first.counters().requests > 0 && second.counters().requests > 0);
}

#[test]
fn the_authority_of_a_store_counts_where_it_redirects_single_files() {
    let authority = TestCa::new().unwrap();
    let tree = Tree::of(&[1000, 50_000, 3]);
    let (first, second) = (secure(&tree, &authority), secure(&tree, &authority));
    first.add_fault(FaultRule::always(PathMatch::Any, Fault::RedirectSigned(other_name(&second))));
    let signer = TestSigner::at(&first.url(), Says::Status);
    let ran = signer.setup(tls_of(&authority)).client(&[first.url()]).fetch(&tree);
    ran.all_verified(&tree);
    assert!(second.counters().requests > 0);
}

/// A client with one connection, whose credentials are renewed when it has this file.
fn with_ending_credentials(signer: TestSigner, server: &Server, awaited: &str) -> Client {
    let directory = tempfile::tempdir().unwrap();
    let signer = TestSigner { awaited: directory.path().join(awaited), ..signer };
    let mut setup = Setup { directory: Some(directory), ..signer.setup(None) };
    setup.options.limits.connections_per_host = 1;
    setup.client(&[server.url()])
}

#[test]
fn files_on_their_way_are_read_while_credentials_are_renewed() {
    let tree = Tree::of(&[200_000, 1000]);
    let server = tree.good();
    let signer = TestSigner { last_signature: 1, ..TestSigner::at(&server.url(), Says::Expired) };
    let mut client = with_ending_credentials(signer, &server, "pool/f0");
    let batches = [0, 1].map(|id| vec![client.item(&tree, id)]);
    let ran = client.fetch_batches(&tree, batches.into());
    ran.all_verified(&tree);
}

#[test]
fn requests_go_on_while_credentials_are_renewed_that_still_count() {
    let tree = Tree::of(&[200_000, 1000]);
    let server = tree.good();
    let signer = TestSigner { is_due: true.into(), ..TestSigner::at(&server.url(), Says::Expired) };
    let mut client = with_ending_credentials(signer, &server, "pool/f1");
    let batches = [0, 1].map(|id| vec![client.item(&tree, id)]);
    let ran = client.fetch_batches(&tree, batches.into());
    ran.all_verified(&tree);
}

/// The answers behind a refused one come from the same connection.
#[test]
fn answers_behind_a_refused_one_are_read_while_credentials_are_renewed() {
    let tree = Tree::of(&[1000; 20]);
    for refused in 0..20 {
        let server = tree.good();
        server.add_fault(FaultRule::once(PathMatch::Suffix(format!("/f{refused}")), Fault::Status(403)));
        // The answers after the refused one bring it, if the file is not the last one.
        let awaited = if refused == 19 { "pool/f0" } else { "pool/f19" };
        let signer = TestSigner::at(&server.url(), Says::Expired);
        let mut client = with_ending_credentials(signer, &server, awaited);
        let ran = client.fetch(&tree);
        ran.all_verified(&tree);
        assert_eq!(ran.hosts[0].totals.faults, 0, "{ran:#?}");
    }
}
