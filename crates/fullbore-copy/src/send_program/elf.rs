//! The header of an ELF file (elf(5)), as far as it tells where a program runs.

/// Offset of `e_machine` in the header.
const MACHINE_AT: usize = 18;
/// Values of `e_machine`, and the names that `uname -m` has for these processors.
const MACHINES: &[(u16, &str)] =
    &[(3, "i686"), (21, "ppc64le"), (40, "armv7l"), (62, "x86_64"), (183, "aarch64"), (243, "riscv64")];

/// What a program needs of the machine that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    /// The processor, by its name in `uname -m`; `None` if it is not in the table.
    pub(crate) machine: Option<&'static str>,
    /// Whether the program needs no loader and no libraries.
    pub(crate) is_static: bool,
}

impl Elf {
    /// Reads the header of a program; `None` if the bytes are not a little-endian ELF file.
    pub(crate) fn read(program: &[u8]) -> Option<Elf> {
        let (is_64_bit, is_32_bit) = (program.starts_with(b"\x7fELF\x02\x01"), program.starts_with(b"\x7fELF\x01\x01"));
        if !is_64_bit && !is_32_bit {
            return None;
        }
        let code = u16_at(program, MACHINE_AT)?;
        let machine = MACHINES.iter().find(|(known, _)| *known == code).map(|(_, name)| *name);
        let interpreted = if is_64_bit { has_interpreter(program, 32, 54) } else { has_interpreter(program, 28, 42) };
        Some(Elf { machine, is_static: !interpreted? })
    }

    /// Whether a kernel that calls its processor `machine` can run the program. 64-bit kernels also run 32-bit
    /// programs.
    pub(crate) fn runs_on(self, machine: &str) -> bool {
        match self.machine {
            None => true,
            Some("i686") => matches!(machine, "x86_64" | "i386" | "i486" | "i586" | "i686"),
            Some("armv7l") => matches!(machine, "aarch64" | "armv7l" | "armv8l"),
            Some(own) => own == machine,
        }
    }
}

/// Whether the program has a segment `PT_INTERP`, which names its loader. `table_at` and `size_at` are the offsets of
/// `e_phoff` and `e_phentsize`; `e_phnum` follows the latter.
fn has_interpreter(program: &[u8], table_at: usize, size_at: usize) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    let table = if table_at == 32 {
        u64::from_le_bytes(program.get(32..40)?.try_into().ok()?)
    } else {
        u64::from(u32_at(program, table_at)?)
    };
    let table = usize::try_from(table).ok()?;
    let (size, count) = (usize::from(u16_at(program, size_at)?), usize::from(u16_at(program, size_at + 2)?));
    let kind = |number: usize| u32_at(program, table.checked_add(number * size)?);
    let kinds = (0..count).map(kind).collect::<Option<Vec<u32>>>()?;
    Some(kinds.contains(&PT_INTERP))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// An ELF file of 64 bits with one segment.
#[cfg(test)]
pub(crate) fn sample(machine: u16, segment: u8) -> Vec<u8> {
    let mut elf = vec![0; 64 + 56];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    elf[MACHINE_AT..MACHINE_AT + 2].copy_from_slice(&machine.to_le_bytes());
    (elf[32], elf[54], elf[56], elf[64]) = (64, 56, 1, segment);
    elf
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_program_that_needs_a_loader_is_told_from_one_that_does_not() {
        assert_eq!(Elf::read(&sample(183, 0)), Some(Elf { machine: Some("aarch64"), is_static: true }));
        assert_eq!(Elf::read(&sample(62, 3)), Some(Elf { machine: Some("x86_64"), is_static: false }));
        assert_eq!(Elf::read(&sample(62, 0)[..100]), Some(Elf { machine: Some("x86_64"), is_static: true }));
        assert_eq!(Elf::read(&sample(62, 0)[..60]), None);
        assert_eq!(Elf::read(b"#!/bin/sh\n"), None);
    }

    #[test]
    fn programs_of_32_bits_run_on_kernels_of_64() {
        let arm = Elf { machine: Some("armv7l"), is_static: true };
        assert!(arm.runs_on("aarch64") && arm.runs_on("armv7l") && !arm.runs_on("x86_64"));
        let x86_64 = Elf { machine: Some("x86_64"), is_static: true };
        assert!(x86_64.runs_on("x86_64") && !x86_64.runs_on("i686") && !x86_64.runs_on("aarch64"));
    }

    proptest! {
        #[test]
        fn no_head_makes_the_reader_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), class in 1u8..3) {
            for (at, byte) in [0x7f, b'E', b'L', b'F', class, 1].into_iter().enumerate().take(bytes.len()) {
                bytes[at] = byte;
            }
            let _ = Elf::read(&bytes);
        }
    }
}
