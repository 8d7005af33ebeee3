//! Random bytes from the kernel, for keys, secrets and names of journals.

/// Returns `N` unpredictable bytes from the kernel's generator.
///
/// # Panics
/// If the kernel's generator fails, which does not happen on a supported kernel.
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
