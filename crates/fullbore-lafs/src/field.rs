//! GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11D), of which 2 is a primitive element.
//!
//! [`combine`] does the work: a sum of products, over the bytes of many blocks. Its instructions are chosen once, when
//! the processor is known (`kernel`).

mod kernel;

use std::sync::LazyLock;

pub use kernel::Kernel;
pub(crate) use kernel::combine;

/// The polynomial, without x^8.
const POLYNOMIAL: u8 = 0x1d;

/// Tables of powers of 2 and of logarithms. The powers are there twice, so that the sum of two logarithms needs no
/// reduction.
struct Logarithms {
    power: [u8; 510],
    log: [u8; 256],
}

const fn logarithms() -> Logarithms {
    let mut tables = Logarithms { power: [0; 510], log: [0; 256] };
    let mut value = 1_u8;
    let mut exponent = 0;
    while exponent < 255 {
        tables.power[exponent] = value;
        tables.power[exponent + 255] = value;
        tables.log[value as usize] = exponent as u8;
        value = (value << 1) ^ if value & 0x80 != 0 { POLYNOMIAL } else { 0 };
        exponent += 1;
    }
    tables
}

static LOGARITHMS: Logarithms = logarithms();

/// Product of two elements of GF(2^8).
pub(crate) fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    LOGARITHMS.power[usize::from(LOGARITHMS.log[usize::from(a)]) + usize::from(LOGARITHMS.log[usize::from(b)])]
}

/// 2 to the power `exponent`.
pub(crate) fn power_of_two(exponent: usize) -> u8 {
    LOGARITHMS.power[exponent % 255]
}

/// Multiplicative inverse of `a`; `None` for zero.
pub(crate) fn inverse(a: u8) -> Option<u8> {
    (a != 0).then(|| LOGARITHMS.power[255 - usize::from(LOGARITHMS.log[usize::from(a)])])
}

/// All products with one element, in the forms that the kernels use.
#[derive(Clone)]
struct Products {
    /// Products with the low and the high four bits of a byte: one shuffle each.
    low: [u8; 16],
    high: [u8; 16],
    /// The product as a matrix over bits, for GF2P8AFFINEQB: byte 7-i has the bits whose sum is bit i of the product.
    matrix: u64,
}

static PRODUCTS: LazyLock<Vec<Products>> = LazyLock::new(|| {
    (0..=255_u8)
        .map(|factor| {
            let mut products = Products { low: [0; 16], high: [0; 16], matrix: 0 };
            for nibble in 0..16_u8 {
                products.low[usize::from(nibble)] = multiply(factor, nibble);
                products.high[usize::from(nibble)] = multiply(factor, nibble << 4);
            }
            for bit in 0..8 {
                let column = multiply(factor, 1 << bit);
                for row in 0..8 {
                    products.matrix |= u64::from(column >> row & 1) << (8 * (7 - row) + bit);
                }
            }
            products
        })
        .collect()
});

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplies by shifting and adding, as in the definition.
    fn slowly(mut a: u8, mut b: u8) -> u8 {
        let mut product = 0;
        while b != 0 {
            if b & 1 != 0 {
                product ^= a;
            }
            a = (a << 1) ^ if a & 0x80 != 0 { POLYNOMIAL } else { 0 };
            b >>= 1;
        }
        product
    }

    #[test]
    fn products_and_inverses_are_those_of_the_definition() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(multiply(a, b), slowly(a, b), "{a} * {b}");
            }
            match inverse(a) {
                Some(inverse) => assert_eq!(multiply(a, inverse), 1),
                None => assert_eq!(a, 0),
            }
        }
        assert_eq!((power_of_two(0), power_of_two(8), power_of_two(255)), (1, 0x1d, 1));
    }
}
