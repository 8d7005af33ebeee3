//! Bytes of chance from the kernel: keys, secrets, names of journals.

/// Returns `N` unpredictable bytes from the kernel's generator.
///
/// # Panics
/// When the kernel gives none, which no supported kernel does.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel gives random bytes");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_the_same() {
        assert_ne!(random::<16>(), random::<16>());
    }
}
