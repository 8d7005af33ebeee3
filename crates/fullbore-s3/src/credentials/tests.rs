//! Where credentials are looked for, and what services that hand them out may answer.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

use super::*;

/// A service that answers by method and path, and notes what it was asked.
fn service(
    answers: &'static [(&'static str, &'static str, u16, &'static str)],
) -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
                head.push_str(&line);
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let line = head.lines().next().unwrap_or_default().to_owned();
            let found = answers.iter().find(|(method, path, ..)| line.starts_with(&format!("{method} {path} ")));
            let (status, text) = found.map_or((404, ""), |(_, _, status, text)| (*status, *text));
            let _ = sender.send(format!("{head}\n{}", String::from_utf8_lossy(&body)));
            let _ = write!(
                stream.get_mut(),
                "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
                text.len()
            );
        }
    });
    (url, asked)
}

struct Found {
    home: tempfile::TempDir,
    variables: HashMap<String, String>,
}

impl Found {
    fn new(config: &str, credentials: &str) -> Found {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(".aws")).unwrap();
        fs::write(home.path().join(".aws/config"), config).unwrap();
        fs::write(home.path().join(".aws/credentials"), credentials).unwrap();
        let variables = HashMap::from([("HOME".to_owned(), home.path().display().to_string())]);
        Found { home, variables }
    }

    fn with(mut self, name: &str, value: &str) -> Found {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    fn find(&self, profile: Option<&str>) -> Result<Aws, CredentialsError> {
        Aws::find(&|name| self.variables.get(name).cloned(), profile)
    }

    async fn identity(&self, profile: Option<&str>) -> Result<Arc<Identity>, CredentialsError> {
        let cache = CredentialCache::new(self.find(profile)?.providers, ConnectOptions::default());
        Ok(cache.identity(None).await?.unwrap())
    }
}

const KEYS: &str = "[default]\naws_access_key_id=D\naws_secret_access_key=ds\n\
                    [other]\naws_access_key_id=O\naws_secret_access_key=os\naws_session_token=ot\n";

#[tokio::test]
async fn the_environment_goes_before_profiles_and_a_named_profile_before_it() {
    let found = Found::new("[profile other]\nregion=eu-north-1\n", KEYS);
    assert_eq!(found.identity(None).await.unwrap().access_key_id, "D");
    let other = found.identity(Some("other")).await.unwrap();
    assert_eq!((other.access_key_id.as_str(), other.session_token.as_deref()), ("O", Some("ot")));
    assert_eq!(found.find(Some("other")).unwrap().region.as_deref(), Some("eu-north-1"));
    let found = found.with("AWS_ACCESS_KEY_ID", "E").with("AWS_SECRET_ACCESS_KEY", "es");
    assert_eq!(found.identity(None).await.unwrap().access_key_id, "E");
    assert_eq!(found.identity(Some("other")).await.unwrap().access_key_id, "O");
    let found = Found::new("", KEYS).with("AWS_PROFILE", "other");
    assert_eq!(found.identity(None).await.unwrap().access_key_id, "O");
    let missing = found.find(Some("nobody")).unwrap_err();
    assert!(matches!(missing, CredentialsError::NoProfile { .. }), "{missing}");
}

#[tokio::test]
async fn a_program_prints_credentials() {
    let json = r#"{"Version": 1, "AccessKeyId": "P", "SecretAccessKey": "ps", "SessionToken": "pt", "Expiration": "2099-01-01T00:00:00Z"}"#;
    let found = Found::new(&format!("[default]\ncredential_process = printf %s '{json}'\n"), "");
    let identity = found.identity(None).await.unwrap();
    assert_eq!((identity.access_key_id.as_str(), identity.expires), ("P", Some(4_070_908_800)));
    for (command, part) in [("exit 3", "3"), ("echo secret", "unexpected output")] {
        let found = Found::new(&format!("[default]\ncredential_process = {command}\n"), "");
        let error = found.identity(None).await.unwrap_err().to_string();
        assert!(error.contains(part) && !error.contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn credentials_that_no_request_can_hold_are_not_shown() {
    let keys = Found::new("", "").with("AWS_ACCESS_KEY_ID", "E").with("AWS_SECRET_ACCESS_KEY", "es");
    let token = keys.with("AWS_SESSION_TOKEN", "the-token\r\n");
    let error = token.identity(None).await.unwrap_err().to_string();
    assert!(error.contains("session token") && !error.contains("the-token"), "{error}");
    let printed = r#"{"AccessKeyId": "P", "SecretAccessKey": "the-secret\n"}"#;
    let found = Found::new(&format!("[default]\ncredential_process = printf %s '{printed}'\n"), "");
    let error = found.identity(None).await.unwrap_err().to_string();
    assert!(error.contains("secret key") && !error.contains("the-secret"), "{error}");
}

#[tokio::test]
async fn what_is_missing_is_told() {
    let off = Found::new("", "").with("AWS_EC2_METADATA_DISABLED", "true");
    assert_eq!(off.identity(None).await.unwrap_err().to_string(), "no credentials found");
    let error = off.with("AWS_ACCESS_KEY_ID", "E").find(None).unwrap_err().to_string();
    assert!(error.contains("AWS_SECRET_ACCESS_KEY is not"), "{error}");
}

#[tokio::test]
async fn single_sign_on_is_unsupported_and_said_so() {
    let found = Found::new("[default]\nsso_session = x\n[sso-session x]\nsso_region = y\n", "");
    let error = found.find(None).unwrap_err().to_string();
    assert!(error.contains("single sign-on") && error.contains("export-credentials"), "{error}");
}

const ROLE: &str = "<AssumeRoleWithWebIdentityResponse><R><Credentials><AccessKeyId>W</AccessKeyId>\
    <SecretAccessKey>ws</SecretAccessKey><SessionToken>wt</SessionToken>\
    <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></R></AssumeRoleWithWebIdentityResponse>";

#[tokio::test]
async fn a_web_identity_is_exchanged() {
    let (url, asked) = service(&[("POST", "/", 200, ROLE)]);
    let found = Found::new("", "");
    let token = found.home.path().join("token");
    fs::write(&token, "the.jwt\n").unwrap();
    let found = found
        .with("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap())
        .with("AWS_ROLE_ARN", "arn:aws:iam::1:role/r")
        .with("AWS_ENDPOINT_URL_STS", &url);
    let identity = found.identity(None).await.unwrap();
    assert_eq!((identity.access_key_id.as_str(), identity.session_token.as_deref()), ("W", Some("wt")));
    let asked = asked.recv().unwrap();
    for part in
        ["Action=AssumeRoleWithWebIdentity", "WebIdentityToken=the.jwt", "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr"]
    {
        assert!(asked.contains(part), "{part}: {asked}");
    }
    assert!(!asked.contains("uthorization"), "this request needs no signature");
}

#[tokio::test]
async fn a_role_is_assumed_by_another_profile() {
    let (url, asked) = service(&[("POST", "/", 200, ROLE)]);
    let config = format!(
        "[profile r]\nrole_arn=arn:aws:iam::1:role/r\nsource_profile=other\nexternal_id=x y\nendpoint_url={url}\nregion=eu-west-3\n\
         [profile circle]\nrole_arn=a\nsource_profile=circle2\n[profile circle2]\nrole_arn=a\nsource_profile=circle\n"
    );
    let found = Found::new(&config, KEYS);
    assert_eq!(found.identity(Some("r")).await.unwrap().access_key_id, "W");
    let asked = asked.recv().unwrap();
    assert!(asked.contains("Credential=O/") && asked.contains("/eu-west-3/sts/aws4_request"), "{asked}");
    assert!(asked.contains("X-Amz-Security-Token: ot") && asked.contains("ExternalId=x%20y"), "{asked}");
    assert!(found.find(Some("circle")).unwrap_err().to_string().contains("circle"));
}

#[tokio::test]
async fn refusals_of_the_token_service_are_told() {
    let (url, _asked) = service(&[(
        "POST",
        "/",
        403,
        "<ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>",
    )]);
    let config = format!("[profile r]\nrole_arn=arn:x\nsource_profile=other\nendpoint_url={url}\n");
    let error = Found::new(&config, KEYS).identity(Some("r")).await.unwrap_err().to_string();
    assert!(error.contains("arn:x") && error.contains("403 AccessDenied no"), "{error}");
}

const PRINTED: &str = r#"{"Code": "Success", "AccessKeyId": "M", "SecretAccessKey": "ms", "Token": "mt", "Expiration": "2099-01-01T00:00:00Z"}"#;

#[tokio::test]
async fn a_container_has_credentials() {
    let (url, asked) = service(&[("GET", "/creds?id=1", 200, PRINTED)]);
    let found = Found::new("", "")
        .with("AWS_CONTAINER_CREDENTIALS_FULL_URI", &format!("{url}/creds?id=1"))
        .with("AWS_CONTAINER_AUTHORIZATION_TOKEN", "Basic abc");
    let identity = found.identity(None).await.unwrap();
    assert_eq!((identity.access_key_id.as_str(), identity.session_token.as_deref()), ("M", Some("mt")));
    assert!(asked.recv().unwrap().contains("Authorization: Basic abc"));
    let far = Found::new("", "").with("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://192.0.2.1/creds");
    let error = far.identity(None).await.unwrap_err().to_string();
    assert!(error.contains("https"), "{error}");
}

#[tokio::test]
async fn a_machine_has_a_role_by_sessions_only() {
    const ROLES: &str = "/latest/meta-data/iam/security-credentials/";
    let (url, asked) = service(&[
        ("PUT", "/latest/api/token", 200, "session"),
        ("GET", "/latest/meta-data/iam/security-credentials/", 200, "my-role\n"),
        ("GET", "/latest/meta-data/iam/security-credentials/my-role", 200, PRINTED),
    ]);
    let found = Found::new("", "").with("AWS_EC2_METADATA_SERVICE_ENDPOINT", &url);
    assert_eq!(found.identity(None).await.unwrap().access_key_id, "M");
    assert!(asked.recv().unwrap().contains("token-ttl-seconds: 21600"));
    for path in [ROLES.to_owned(), format!("{ROLES}my-role")] {
        let asked = asked.recv().unwrap();
        assert!(asked.contains(&path) && asked.contains("X-aws-ec2-metadata-token: session"), "{asked}");
    }
    let (none, _) = service(&[("PUT", "/latest/api/token", 200, "session")]);
    let found = Found::new("", "").with("AWS_EC2_METADATA_SERVICE_ENDPOINT", &none);
    let error = found.identity(None).await.unwrap_err();
    assert!(matches!(&error, CredentialsError::None { .. }) && error.to_string().contains("no role"), "{error}");
    let off = found.with("AWS_EC2_METADATA_DISABLED", "true");
    assert!(off.find(None).unwrap().providers.is_empty());
}

#[tokio::test]
async fn credentials_are_renewed_when_they_end_or_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (count, ends) = (directory.path().join("count"), directory.path().join("ends"));
    fs::write(&ends, "2020-01-01T00:00:00Z").unwrap();
    let command = format!(
        r#"echo x >> {0}; printf '{{"AccessKeyId": "%s", "SecretAccessKey": "s", "Expiration": "%s"}}' $(wc -l < {0}) $(cat {1})"#,
        count.display(),
        ends.display()
    );
    let cache = CredentialCache::new(vec![Provider::Process { command }], ConnectOptions::default());
    let ask = async |refused: Option<&Identity>| cache.identity(refused).await.unwrap().unwrap();
    assert_eq!(ask(None).await.access_key_id, "1");
    fs::write(&ends, "2099-01-01T00:00:00Z").unwrap();
    let second = ask(None).await;
    assert_eq!(second.access_key_id, "2", "the first had ended");
    assert_eq!(ask(None).await.access_key_id, "2", "kept");
    assert_eq!(ask(Some(&second)).await.access_key_id, "3", "the store did not take the second");
}

#[tokio::test]
async fn credentials_that_still_count_are_used_while_one_caller_renews_them() {
    let directory = tempfile::tempdir().unwrap();
    let (count, may_end) = (directory.path().join("count"), directory.path().join("may_end"));
    let command = format!(
        r#"echo x >> {0}; n=$(wc -l < {0}); while [ $n = 2 ] && [ ! -e {1} ]; do sleep 0.01; done; printf '{{"AccessKeyId": "%s", "SecretAccessKey": "s", "Expiration": "%s"}}' $n $(date -u -d '60 seconds' +%Y-%m-%dT%H:%M:%SZ)"#,
        count.display(),
        may_end.display()
    );
    let cache = CredentialCache::new(vec![Provider::Process { command }], ConnectOptions::default());
    let ask = async || cache.identity(None).await.unwrap().unwrap().access_key_id.clone();
    assert_eq!(ask().await, "1");
    let others = async {
        while fs::read_to_string(&count).unwrap().lines().count() < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        assert_eq!([ask().await, ask().await], ["1", "1"]);
        fs::write(&may_end, "").unwrap();
    };
    let both = async { tokio::join!(ask(), others) };
    let (renewed, ()) = tokio::time::timeout(std::time::Duration::from_secs(30), both).await.unwrap();
    assert_eq!(renewed, "2");
}

#[test]
fn the_nearest_setting_of_endpoints_and_checksums_counts() {
    let config = "[default]\nservices = mine\nca_bundle = /x.pem\ns3 =\n  addressing_style = virtual\n\
                  [services mine]\ns3 =\n  endpoint_url = http://of.profile\n";
    let found = Found::new(config, "");
    let aws = found.find(None).unwrap();
    assert_eq!((aws.endpoint.as_deref(), aws.addressing), (Some("http://of.profile"), Addressing::Virtual));
    assert_eq!(aws.authorities.as_deref(), Some(Path::new("/x.pem")));
    let found = found.with("AWS_ENDPOINT_URL", "http://general");
    assert_eq!(found.find(None).unwrap().endpoint.as_deref(), Some("http://of.profile"));
    let found = found.with("AWS_ENDPOINT_URL_S3", "http://s3");
    assert_eq!(found.find(None).unwrap().endpoint.as_deref(), Some("http://s3"));
    let found = found.with("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true");
    assert_eq!(found.find(None).unwrap().endpoint, None);
    let found = Found::new("[default]\nrequest_checksum_calculation = WHEN_REQUIRED\n", "");
    let checksums = |found: &Found| found.find(None).map(|aws| (aws.sends_checksums, aws.asks_for_checksums));
    assert_eq!(checksums(&found), Ok((false, true)));
    let found = found.with("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported");
    let found = found.with("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required");
    assert_eq!(checksums(&found), Ok((true, false)), "the environment counts before the profile");
    let error = checksums(&found.with("AWS_RESPONSE_CHECKSUM_VALIDATION", "never")).unwrap_err().to_string();
    assert!(error.contains("AWS_RESPONSE_CHECKSUM_VALIDATION=never"), "{error}");
    assert!(Found::new("broken", "").find(None).unwrap_err().to_string().contains("config: line 1"));
}
