//! Proxies of apt's configuration.
//!
//! For runs with apt's sources only: they use apt's proxies.

use fullbore_wire::run::ProxyAddresses;

use crate::acquire::Configuration;

/// Programs that find a proxy are not run: their answer depends on the address.
const AUTO_DETECT: &str = "proxy-auto-detect";

/// apt's proxies, with `environment` as the fallback. As in apt, https falls back to the proxy of http.
pub fn over(configuration: &Configuration, environment: &ProxyAddresses) -> ProxyAddresses {
    let (http, http_hosts) = scheme(configuration, "http");
    let (https, https_hosts) = scheme(configuration, "https");
    let mut hosts = https_hosts;
    for (host, proxy) in http_hosts.iter().chain(&environment.hosts) {
        if !hosts.iter().any(|(known, _)| known == host) {
            hosts.push((host.clone(), proxy.clone()));
        }
    }
    ProxyAddresses {
        https: https.or_else(|| http.clone()).or_else(|| environment.https.clone()),
        http: http.or_else(|| environment.http.clone()),
        no_proxy: environment.no_proxy.clone(),
        hosts,
    }
}

/// `Acquire::SCHEME::Proxy` and the proxies of single hosts below it.
fn scheme(configuration: &Configuration, scheme: &str) -> (Option<String>, Vec<(String, String)>) {
    let key = format!("Acquire::{scheme}::Proxy");
    // `false` is another word for none.
    let value = |value: &str| if value.eq_ignore_ascii_case("false") { "DIRECT" } else { value }.to_owned();
    for (name, _) in configuration.children(&format!("Acquire::{scheme}")) {
        if name.eq_ignore_ascii_case(AUTO_DETECT) {
            tracing::warn!("Acquire::{scheme}::{name} is not used; http_proxy names a proxy");
        }
    }
    let hosts = configuration.children(&key).filter(|(host, proxy)| !host.is_empty() && !proxy.is_empty());
    let hosts = hosts.map(|(host, proxy)| (host.to_ascii_lowercase(), value(proxy))).collect();
    (configuration.get(&key).map(value), hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheme_has_a_default_and_hosts_have_their_own_proxies() {
        let environment = ProxyAddresses {
            http: Some("http://environment:1".into()),
            https: Some("http://environment:2".into()),
            no_proxy: vec!["localhost".into()],
            hosts: Vec::new(),
        };
        let read = |dump: &str| over(&Configuration::from_dump(dump).unwrap(), &environment);
        assert_eq!(read("Acquire::http::Timeout=30\nAPT=\n"), environment);
        let proxies = read(
            "Acquire::http::Proxy=http://a:3142\nAcquire::http::Proxy::b.example=DIRECT\n\
             Acquire::https::Proxy::C.example=http://d:1\nAcquire::ftp::Proxy=http://e\n",
        );
        assert_eq!(proxies.http.as_deref(), Some("http://a:3142"));
        assert_eq!(proxies.https.as_deref(), Some("http://a:3142"), "as apt, https has what http has");
        let pairs = |hosts: &[(&str, &str)]| {
            hosts.iter().map(|(host, proxy)| (host.to_string(), proxy.to_string())).collect::<Vec<_>>()
        };
        assert_eq!(proxies.hosts, pairs(&[("c.example", "http://d:1"), ("b.example", "DIRECT")]));
        let root = Configuration::from_dump("Acquire::http::Proxy::b.example=http://f:1\n").unwrap();
        let over_both = over(&root, &proxies).hosts;
        assert_eq!(over_both, pairs(&[("b.example", "http://f:1"), ("c.example", "http://d:1")]));
        assert_eq!(proxies.no_proxy, ["localhost"]);
        assert_eq!(read("Acquire::http::Proxy=false\n").http.as_deref(), Some("DIRECT"));
    }
}
