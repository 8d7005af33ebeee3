//! Proxies as apt on this machine has them in its configuration.
//!
//! apt's files nest, include each other and may be anywhere; `apt-config` is asked rather than a second
//! reader written. Only for runs that take their sources from apt: they reach their hosts as apt does.

use std::process::{Command, Stdio};

use super::ProxySettings;

/// Programs that find a proxy are not run: what they say may be another thing for each address.
const AUTO_DETECT: &str = "proxy-auto-detect";

/// apt's proxies; where it has none of its own, `environment` holds for apt as well.
pub fn over(environment: &ProxySettings) -> ProxySettings {
    let dump = Command::new("apt-config").args(["dump", "--format", "%f=%v%n"]).stdin(Stdio::null()).output();
    match dump {
        Ok(output) if output.status.success() => read(&String::from_utf8_lossy(&output.stdout), environment),
        // No apt here: then nobody has configured it.
        _ => environment.clone(),
    }
}

/// Lines `Acquire::http::Proxy[::HOST]=VALUE`. As in apt, https falls back to what http has.
fn read(dump: &str, environment: &ProxySettings) -> ProxySettings {
    let (mut http, mut https) = (None, None);
    let (mut http_hosts, mut https_hosts) = (Vec::new(), Vec::new());
    for line in dump.lines() {
        let Some((name, value)) = line.split_once('=') else { continue };
        let mut parts = name.splitn(4, "::").map(str::to_ascii_lowercase);
        let (Some(acquire), Some(scheme), Some(key)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (default, hosts) = match scheme.as_str() {
            "http" => (&mut http, &mut http_hosts),
            "https" => (&mut https, &mut https_hosts),
            _ => continue,
        };
        if acquire != "acquire" || value.is_empty() {
            continue;
        }
        // `false` is another word for none.
        let value = if value.eq_ignore_ascii_case("false") { "DIRECT" } else { value }.to_owned();
        match (key.as_str(), parts.next()) {
            ("proxy", None) => *default = Some(value),
            ("proxy", Some(host)) => hosts.push((host, value)),
            (AUTO_DETECT, _) => tracing::warn!("{name} is not used; http_proxy names a proxy"),
            _ => {}
        }
    }
    http_hosts.retain(|(host, _)| https_hosts.iter().all(|(other, _)| other != host));
    ProxySettings {
        https: https.or_else(|| http.clone()).or_else(|| environment.https.clone()),
        http: http.or_else(|| environment.http.clone()),
        no_proxy: environment.no_proxy.clone(),
        hosts: http_hosts.into_iter().chain(https_hosts).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_of_each_scheme_and_hosts_of_their_own() {
        let environment = ProxySettings {
            http: Some("http://environment:1".into()),
            https: Some("http://environment:2".into()),
            no_proxy: vec!["localhost".into()],
            hosts: Vec::new(),
        };
        assert_eq!(read("Acquire::http::Timeout=30\nAPT=\n", &environment), environment);
        let proxies = read(
            "Acquire::http::Proxy=http://a:3142\nAcquire::http::Proxy::b.example=DIRECT\n\
             Acquire::https::Proxy::C.example=http://d:1\nAcquire::ftp::Proxy=http://e\n",
            &environment,
        );
        assert_eq!(proxies.http.as_deref(), Some("http://a:3142"));
        assert_eq!(proxies.https.as_deref(), Some("http://a:3142"), "as apt, https has what http has");
        let hosts = [("b.example", "DIRECT"), ("c.example", "http://d:1")];
        assert_eq!(proxies.hosts, hosts.map(|(host, proxy)| (host.to_owned(), proxy.to_owned())));
        assert_eq!(proxies.no_proxy, ["localhost"]);
        assert_eq!(read("Acquire::http::Proxy=false\n", &environment).http.as_deref(), Some("DIRECT"));
    }
}
