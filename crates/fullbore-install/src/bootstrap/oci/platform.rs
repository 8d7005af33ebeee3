//! The architecture of an image: its name in Go (GOARCH), and a variant, as the image-spec requires (config.md).

/// Debian's names, with Go's name and variant. armel runs from ARMv5 on, armhf from ARMv7.
const OF_DEBIAN: [(&str, &str, Option<&str>); 16] = [
    ("amd64", "amd64", None),
    ("arm64", "arm64", Some("v8")),
    ("armel", "arm", Some("v5")),
    ("armhf", "arm", Some("v7")),
    ("i386", "386", None),
    ("loong64", "loong64", None),
    ("mips", "mips", None),
    ("mips64el", "mips64le", None),
    ("mipsel", "mipsle", None),
    ("powerpc", "ppc", None),
    ("ppc64", "ppc64", None),
    ("ppc64el", "ppc64le", None),
    ("riscv64", "riscv64", None),
    ("s390x", "s390x", None),
    ("sparc", "sparc", None),
    ("sparc64", "sparc64", None),
];

/// Variant of `arm` without one: what container engines assume.
const PLAIN_ARM: &str = "v7";

/// The architecture of an image, in the terms of Go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// GOARCH, such as `arm64`.
    pub architecture: &'static str,
    /// Variant of the architecture, such as `v8`.
    pub variant: Option<String>,
}

impl Platform {
    /// Architecture of a root, by Debian's name; `None` if images have no name for it.
    pub fn of_debian(name: &str) -> Option<Platform> {
        let (_, architecture, variant) = OF_DEBIAN.iter().find(|(debian, ..)| *debian == name)?;
        Some(Platform { architecture, variant: variant.map(str::to_owned) })
    }

    /// An architecture by Go's or Debian's name, with `/VARIANT` or without, and with `linux/` or without. `None` for
    /// an unknown name.
    ///
    /// ```
    /// use fullbore_install::bootstrap::oci::Platform;
    ///
    /// assert_eq!(Platform::parse("armhf"), Platform::parse("linux/arm/v7"));
    /// assert_eq!(Platform::parse("x86_64"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Platform> {
        let text = text.strip_prefix("linux/").unwrap_or(text);
        let (name, variant) = text.split_once('/').map_or((text, None), |(name, variant)| (name, Some(variant)));
        let mut platform = match Platform::of_debian(name) {
            Some(platform) => platform,
            None => {
                let (_, architecture, _) = OF_DEBIAN.iter().find(|(_, architecture, _)| *architecture == name)?;
                let variant = (name == "arm").then(|| PLAIN_ARM.to_owned());
                Platform { architecture, variant }
            }
        };
        if let Some(variant) = variant {
            let is_word = variant.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
            if variant.is_empty() || !is_word {
                return None;
            }
            platform.variant = Some(variant.to_owned());
        }
        Some(platform)
    }

    /// The GOARCH names that [`Platform::parse`] knows.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<_> = OF_DEBIAN.iter().map(|(_, architecture, _)| *architecture).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_kinds_are_known() {
        let parse = |text| Platform::parse(text).map(|platform| (platform.architecture, platform.variant));
        let plain = |architecture| Some((architecture, None));
        let variant = |architecture, variant: &str| Some((architecture, Some(variant.to_owned())));
        assert_eq!(parse("amd64"), plain("amd64"));
        assert_eq!(parse("i386"), plain("386"));
        assert_eq!(parse("386"), plain("386"));
        assert_eq!(parse("arm64"), variant("arm64", "v8"));
        assert_eq!(parse("armhf"), variant("arm", "v7"));
        assert_eq!(parse("armel"), variant("arm", "v5"));
        assert_eq!(parse("arm"), variant("arm", "v7"));
        assert_eq!(parse("arm/v6"), variant("arm", "v6"));
        assert_eq!(parse("armhf/v6"), variant("arm", "v6"));
        assert_eq!(parse("linux/amd64/v3"), variant("amd64", "v3"));
        assert_eq!(parse("ppc64el"), plain("ppc64le"));
        for wrong in ["", "x86_64", "aarch64", "hppa", "windows/amd64", "arm/", "arm/V7", "arm/v7/x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(Platform::of_debian("386"), None);
    }
}
