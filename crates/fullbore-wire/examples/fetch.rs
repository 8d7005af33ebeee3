//! Fetches the files of a manifest (`sha256 TAB bytes TAB path`) from many mirrors into a directory:
//! the wire and the engine without anything that knows Debian.
//!
//!     cargo run --release --example fetch -- MANIFEST DIRECTORY http://mirror/ [http://other/ ...]

use std::error::Error;
use std::sync::Arc;

use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::Durability;
use fullbore_engine::files::Root;
use fullbore_engine::journal::Journal;
use fullbore_engine::landing::{FileSpec, Landing};
use fullbore_engine::stage::Ledger;
use fullbore_engine::target::LocalTarget;
use fullbore_engine::window::Window;
use fullbore_wire::fetch::{Catalogue, FetchEvent, FetchOptions, Fetcher, Parts};
use fullbore_wire::queue::{Item, ItemId};
use fullbore_wire::url::Url;

struct Manifest(Vec<(Sha256, u64, String)>);

impl Catalogue for Manifest {
    fn path(&self, item: ItemId) -> String {
        self.0[item as usize].2.clone()
    }

    fn sha256(&self, item: ItemId) -> Sha256 {
        self.0[item as usize].0
    }

    fn spec(&self, item: ItemId) -> FileSpec {
        let (sha256, size, path) = self.0[item as usize].clone();
        FileSpec { item, path, size, sha256, mtime: None }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: fetch MANIFEST DIRECTORY URL...";
    let manifest = std::fs::read_to_string(arguments.next().ok_or(usage)?)?;
    let directory = arguments.next().ok_or(usage)?;
    let urls = arguments.map(|text| Url::parse(&text)).collect::<Result<Vec<_>, _>>()?;
    let mut files = Vec::new();
    for line in manifest.lines() {
        let mut fields = line.split('\t');
        let mut field = || fields.next().ok_or("a line is sha256 TAB bytes TAB path");
        files.push((field()?.parse()?, field()?.parse()?, field()?.to_owned()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ledger = Ledger::new();
    let window = Window::new(32 << 20, 8192);
    let target = Arc::new(LocalTarget::new(Arc::new(Root::open(directory.as_ref())?), Durability::AtEnd));
    let (sender, outcomes) = tokio::sync::mpsc::unbounded_channel();
    let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get());
    let landing = Landing::start(target, Arc::new(Journal::none()), threads, &ledger, sender)?;
    let items = files.iter().zip(0..).map(|((_, size, _), id)| Item { id, size: *size, ..Item::default() }).collect();
    let catalogue = Arc::new(Manifest(files));
    let bad = runtime.block_on(async {
        let parts = Parts { landing: landing.clone(), outcomes, window, ledger };
        let mut fetcher = Fetcher::start(urls, FetchOptions::default(), parts);
        let mut bad = 0;
        fetcher
            .fetch(catalogue, items, &mut |event| {
                if !matches!(event, FetchEvent::Verified(_)) {
                    eprintln!("{event:?}");
                    bad += 1;
                }
            })
            .await;
        for host in fetcher.hosts() {
            println!("{}: {:?} {:?}", host.name, host.totals, host.out);
        }
        bad
    });
    println!("{:?}", landing.counts());
    landing.finish()?;
    if bad > 0 { Err(format!("{bad} files did not come").into()) } else { Ok(()) }
}
