//! The queue of a planner or a worker, and who this machine is there.

use std::path::Path;

use fullbore_engine::run::error::CommandError;
use fullbore_mirror::mirror::fleet::{Credentials, NatsSettings, Role, connection};

use super::Environment;
use fullbore_engine::run::named_files::read_text;

/// Largest file with a seed, which has 58 letters.
const SEED_BYTES_MAX: u64 = 64 << 10;

/// How a client logs in.
#[derive(Debug, Clone, Copy, Default)]
pub struct Login<'a> {
    /// `--queue-creds`
    pub creds: Option<&'a Path>,
    /// `--queue-nkey`
    pub nkey: Option<&'a Path>,
    /// `--queue-cert` and `--queue-key`
    pub certificate: (Option<&'a Path>, Option<&'a Path>),
    /// `--queue-insecure`
    pub is_insecure: bool,
    /// `--cacert`
    pub cacert: Option<&'a Path>,
}

/// Whether a text is the address of a queue.
pub fn is_queue(text: &std::ffi::OsStr) -> bool {
    let bytes = text.as_encoded_bytes();
    bytes.starts_with(b"tls://") || bytes.starts_with(b"nats://")
}

/// The settings of a connection. Nothing is connected.
pub fn queue(url: &str, role: Role, login: Login<'_>, environment: &Environment) -> Result<NatsSettings, CommandError> {
    connection::is_built_in()?;
    let credentials = match (login.creds, login.nkey, &environment.queue_login) {
        (Some(_), Some(_), _) => {
            return Err(CommandError::usage("--queue-creds and --queue-nkey name two users").hint("pass one of them"));
        }
        (Some(file), None, _) => {
            // Named here, because the client would only say that it cannot log in.
            read_text(file, SEED_BYTES_MAX)?;
            Credentials::File(file.to_owned())
        }
        (None, Some(file), _) => Credentials::NKey(seed(file)?),
        (None, None, (Some(user), Some(password))) => {
            Credentials::Password { user: user.clone(), password: password.clone() }
        }
        (None, None, (None, None)) => Credentials::None,
        (None, None, _) => {
            return Err(CommandError::usage("one of FULLBORE_QUEUE_USER and FULLBORE_QUEUE_PASSWORD is not set")
                .hint("set both, or none of them"));
        }
    };
    let certificate = match login.certificate {
        (Some(certificate), Some(key)) => Some((certificate.to_owned(), key.to_owned())),
        (None, None) => None,
        _ => return Err(CommandError::usage("--queue-cert and --queue-key belong together").hint("pass both")),
    };
    let settings = NatsSettings {
        name: "fullbore".to_owned(),
        credentials,
        authorities: login.cacert.map(Path::to_owned),
        certificate,
        is_insecure: login.is_insecure,
        ..NatsSettings::new(url, role)
    };
    settings.check().and_then(|()| settings.tls()).map_err(|error| connection::explain(&error))?;
    Ok(settings)
}

/// The seed in a file, which may have comments and the public key beside it.
fn seed(path: &Path) -> Result<String, CommandError> {
    let text = read_text(path, SEED_BYTES_MAX)?;
    let seed = text.split_whitespace().find(|word| word.starts_with("SU") && word.len() == 58);
    seed.map(str::to_owned).ok_or_else(|| {
        CommandError::usage(format_args!("{} has no seed of a user's NKey", path.display()))
            .hint("make one with `nk -gen user`; it begins with SU and has 58 letters")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(url: &str, login: Login<'_>) -> Result<NatsSettings, CommandError> {
        queue(url, Role::Worker, login, &Environment::default())
    }

    #[cfg(feature = "fleet")]
    #[test]
    fn what_is_wrong_with_a_queue_is_said_before_anything_is_done() {
        let directory = tempfile::tempdir().unwrap();
        let (creds, empty) = (directory.path().join("a.creds"), directory.path().join("empty"));
        std::fs::write(&creds, "-----BEGIN NATS USER JWT-----\n").unwrap();
        std::fs::write(&empty, "nothing\n").unwrap();
        let with = |creds, nkey| Login { creds, nkey, ..Login::default() };
        for (url, login, message, hint) in [
            ("nats.example:4222", Login::default(), "tls://HOST:PORT", "tls://HOST:4222"),
            ("https://nats.example", Login::default(), "tls://HOST:PORT", "tls://HOST:4222"),
            ("tls://me:secret@nats.example", Login::default(), "a password", "FULLBORE_QUEUE_PASSWORD"),
            ("nats://nats.example", with(Some(creds.as_path()), None), "no TLS", "--queue-insecure"),
            ("tls://nats.example", with(None, Some(empty.as_path())), "no seed", "SU"),
            ("tls://nats.example", with(Some(creds.as_path()), Some(empty.as_path())), "two users", "one of them"),
        ] {
            let error = at(url, login).unwrap_err();
            assert!(error.message.contains(message), "{url}: {error}");
            assert!(error.hints.iter().any(|given| given.contains(hint)), "{url}: {:?}", error.hints);
            assert!(!error.to_string().contains("secret") && error.exit_code() == 1, "{error}");
        }
        let missing = directory.path().join("missing");
        let error = at("tls://nats.example", with(Some(missing.as_path()), None)).unwrap_err();
        assert!(error.message.contains("missing"), "{error}");
        at("nats://127.0.0.1:4222", with(Some(creds.as_path()), None)).unwrap();
        let trusting = Login { is_insecure: true, ..with(Some(creds.as_path()), None) };
        at("nats://nats.example:4222", trusting).unwrap();
    }

    #[cfg(feature = "fleet")]
    #[test]
    fn a_name_and_a_password_come_from_the_environment_and_a_seed_from_a_file() {
        let environment = Environment {
            queue_login: (Some("planner".to_owned()), Some("secret".to_owned())),
            ..Environment::default()
        };
        let settings = queue("tls://nats.example", Role::Planner, Login::default(), &environment).unwrap();
        assert!(matches!(settings.credentials, Credentials::Password { user, .. } if user == "planner"));
        let half = Environment { queue_login: (Some("planner".to_owned()), None), ..Environment::default() };
        let error = queue("tls://nats.example", Role::Planner, Login::default(), &half).unwrap_err();
        assert!(error.message.contains("FULLBORE_QUEUE_PASSWORD is not set"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let seed = format!("SU{}", "A".repeat(56));
        std::fs::write(file.path(), format!("# of w1\n{seed}\n")).unwrap();
        let login = Login { nkey: Some(file.path()), ..Login::default() };
        let settings = queue("tls://nats.example", Role::Worker, login, &environment).unwrap();
        assert!(matches!(settings.credentials, Credentials::NKey(read) if read == seed));
    }

    #[cfg(not(feature = "fleet"))]
    #[test]
    fn a_build_without_queues_says_so() {
        let error = at("tls://nats.example", Login::default()).unwrap_err();
        assert!(error.message.contains("without the feature `fleet`"), "{error}");
    }
}
