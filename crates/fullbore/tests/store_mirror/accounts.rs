//! Users of a NATS server by JWT, as `nsc` makes them: an operator, one account, and creds files.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};

/// When tokens were made: any time that is over.
const MADE_UNIX_S: u64 = 1_760_000_000;

/// The file that packagers install.
pub fn permissions_file() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/nats/permissions.conf");
    fs::read_to_string(path).unwrap()
}

/// The lists of a role in that file: what it may publish, and what it may subscribe to.
pub fn permissions(role: &str) -> [Vec<String>; 2] {
    let file = permissions_file();
    let (_, rest) = file.split_once(&format!("FULLBORE_{role} = {{")).expect("the role");
    let (block, _) = rest.split_once("\n}").expect("its end");
    ["publish: [", "subscribe: ["].map(|name| {
        let (_, list) = block.split_once(name).unwrap();
        let (list, _) = list.split_once(']').unwrap();
        let lines = list.lines().filter(|line| !line.trim_start().starts_with('#'));
        let quoted: Vec<&str> = lines.flat_map(|line| line.split('"').skip(1).step_by(2)).collect();
        assert!(!quoted.is_empty(), "{name}");
        quoted.into_iter().map(str::to_owned).collect()
    })
}

/// An operator, and its only account that has streams.
pub struct Operator {
    operator: KeyPair,
    account: KeyPair,
    system: KeyPair,
}

impl Operator {
    pub fn new() -> Operator {
        let (operator, account, system) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
        Operator { operator, account, system }
    }

    /// The lines of a server that trusts it.
    pub fn configuration(&self) -> String {
        let operator = token(&self.operator, &self.operator, "operator", json!({"type": "operator"}), None);
        let account = |key: &KeyPair, name: &str, storage: i64| {
            let limits = json!({
                "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
                "leaf": -1, "mem_storage": storage, "disk_storage": storage, "streams": storage, "consumer": storage,
            });
            let account = token(&self.operator, key, name, json!({"type": "account", "limits": limits}), None);
            format!("{}: {account}", key.public_key())
        };
        format!(
            "operator: {operator}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{\n{}\n{}\n}}\n",
            self.system.public_key(),
            account(&self.account, "fleet", -1),
            account(&self.system, "system", 0),
        )
    }

    /// Writes the creds file of a user with these lists, which ends at a time, or never. Gives its secrets.
    pub fn write_creds(
        &self,
        file: &Path,
        [publish, subscribe]: &[Vec<String>; 2],
        end_unix_s: Option<u64>,
    ) -> [String; 2] {
        let user = KeyPair::new_user();
        let claims = json!({
            "type": "user", "subs": -1, "data": -1, "payload": -1,
            "pub": {"allow": publish}, "sub": {"allow": subscribe},
        });
        let token = token(&self.account, &user, "user", claims, end_unix_s);
        let seed = user.seed().unwrap();
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        fs::write(file, text).unwrap();
        [token, seed]
    }
}

fn token(issuer: &KeyPair, subject: &KeyPair, name: &str, mut nats: Value, end_unix_s: Option<u64>) -> String {
    nats["version"] = json!(2);
    let mut claims = json!({
        "jti": name, "iat": MADE_UNIX_S, "iss": issuer.public_key(), "sub": subject.public_key(), "name": name,
        "nats": nats,
    });
    if let Some(end) = end_unix_s {
        claims["exp"] = json!(end);
    }
    let encoded = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", encoded(json!({"typ": "JWT", "alg": "ed25519-nkey"})), encoded(claims));
    let signature = issuer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}
