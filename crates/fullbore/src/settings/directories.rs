//! Names of directories for several archives.

use fullbore_wire::url::without_credentials;

use super::archive::Archive;

/// Directories for several archives below one: the last part of each address that tells them
/// apart, `debian` and `debian-security`, or with the host in front where it does not, or with the whole path where
/// one host has several, as those of many people have them.
pub fn directory_names(archives: &[Archive]) -> Vec<String> {
    let names: Vec<[String; 3]> = archives
        .iter()
        .map(|archive| {
            let origin = without_credentials(&archive.origins[0]);
            let rest = origin.split_once("://").map_or("", |(_, rest)| rest);
            // What follows says how a bucket is reached.
            let rest = rest.split('?').next().unwrap_or_default();
            let (host, last) =
                (rest.split('/').next().unwrap_or_default(), rest.rsplit('/').next().unwrap_or_default());
            if rest.contains('/') {
                [safe(last), safe(&format!("{host}-{last}")), safe(&rest.replace('/', "-"))]
            } else {
                [(); 3].map(|()| safe(host))
            }
        })
        .collect();
    let is_alone = |own: &[String; 3], how: usize| names.iter().filter(|other| other[how] == own[how]).count() == 1;
    names.iter().map(|own| own[(0..2).find(|how| is_alone(own, *how)).unwrap_or(2)].clone()).collect()
}

/// A part of an address as the name of a directory.
fn safe(text: &str) -> String {
    let name: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "._+~-".contains(c) { c } else { '_' }).collect();
    if name.starts_with('.') { format!("_{name}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_tell_archives_apart() {
        let archive = |origin: &str| Archive { origins: vec![origin.into()], sources: vec![], notes: vec![] };
        let names = |origins: &[&str]| directory_names(&origins.iter().map(|o| archive(o)).collect::<Vec<_>>());
        assert_eq!(names(&["https://a/debian", "https://a/debian-security"]), ["debian", "debian-security"]);
        assert_eq!(names(&["https://a/debian", "https://b:81/x/debian"]), ["a-debian", "b_81-debian"]);
        assert_eq!(names(&["https://a", "https://b/.."]), ["a", "_.."]);
        assert_eq!(
            names(&["https://a/x/ppa/ubuntu", "https://a/y/ppa/ubuntu", "https://b/ubuntu", "https://b/z"]),
            ["a-x-ppa-ubuntu", "a-y-ppa-ubuntu", "b-ubuntu", "z"]
        );
        let with_credentials = ["https://who:secret@a/debian", "https://who:secret@b/debian", "https://who:secret@c"];
        assert_eq!(names(&with_credentials), ["a-debian", "b-debian", "c"]);
    }
}
