//! Names in the lists directory: the address of a file, as one file name.
//!
//! libapt's `URItoFileName`: without scheme, user and password; characters that a file name or a
//! shell might mind as `%xx`; `/` as `_`.

/// Characters that libapt encodes, besides control characters, space and bytes above 126.
const ENCODED: &[u8] = b"\\|{}[]<>\"^~_=!@#$%^&*";

/// The local name of the file at this address, without the extension of its local form.
///
/// ```
/// let name = fullbore_apt::lists::file_name("http://deb.example.org/debian/dists/sid/InRelease");
/// assert_eq!(name, "deb.example.org_debian_dists_sid_InRelease");
/// ```
pub fn file_name(uri: &str) -> String {
    let rest = uri.split_once(':').map_or(uri, |(_, rest)| rest);
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    // Slashes within brackets belong to the title of a disc: `cdrom:[Debian GNU/Linux 13]/`.
    let mut in_brackets = false;
    let end = rest.find(|c: char| {
        in_brackets = c == '[' || (in_brackets && c != ']');
        c == '/' && !in_brackets
    });
    let (authority, path) = rest.split_at(end.unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    // libapt drops brackets of IPv6 addresses and discs.
    let rest = format!("{}{path}", host.replace(['[', ']'], ""));
    let mut name = String::with_capacity(rest.len());
    for byte in rest.bytes() {
        match byte {
            b'/' => name.push('_'),
            byte if ENCODED.contains(&byte) || !(0x21..0x7f).contains(&byte) => name.push_str(&format!("%{byte:02x}")),
            byte => name.push(char::from(byte)),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_the_names_that_apt_gives_them() {
        for (uri, name) in [
            ("http://mirror.example.org/debian/dists/sid/InRelease", "mirror.example.org_debian_dists_sid_InRelease"),
            ("http://user:secret@[::1]:81/a_b/./x", "::1:81_a%5fb_._x"),
            ("https://h/dists/a~b+c/main/binary-all/Packages", "h_dists_a%7eb+c_main_binary-all_Packages"),
            ("file:/srv/x/dists/s/InRelease", "_srv_x_dists_s_InRelease"),
            (
                "cdrom:[Debian GNU/Linux 12.5.0 _Bookworm_ - DVD]/dists/bookworm/InRelease",
                "Debian%20GNU_Linux%2012.5.0%20%5fBookworm%5f%20-%20DVD_dists_bookworm_InRelease",
            ),
            ("cdrom://[a b/c]/dists/s/x", "a%20b_c_dists_s_x"),
            ("http://h/dists/s/main/dep11/icons-64x64@2.tar", "h_dists_s_main_dep11_icons-64x64%402.tar"),
        ] {
            assert_eq!(file_name(uri), name);
        }
    }
}
