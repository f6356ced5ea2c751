//! Keys as numbers, to search between two of them.

/// A key as a number, to search between keys: longer than those of timers.
pub(super) const NUMBER: usize = 32;
pub(super) type Number = [u8; NUMBER];

pub(super) fn number(key: &[u8]) -> Number {
    let mut number = [0; NUMBER];
    let length = key.len().min(NUMBER);
    number[..length].copy_from_slice(&key[..length]);
    number
}

/// Adds a power of two, unless it does not fit.
pub(super) fn add_bit(mut number: Number, bit: usize) -> Option<Number> {
    let mut carry = 1_u16 << (bit % 8);
    for byte in number[..NUMBER - bit / 8].iter_mut().rev() {
        let sum = u16::from(*byte) + carry;
        *byte = sum as u8;
        carry = sum >> 8;
        if carry == 0 {
            return Some(number);
        }
    }
    None
}

/// The middle of two numbers, if there is one between them.
pub(super) fn between(low: &Number, high: &Number) -> Option<Number> {
    let mut middle = [0; NUMBER];
    let mut carry = 0;
    for (n, byte) in middle.iter_mut().enumerate().rev() {
        let sum = u16::from(low[n]) + u16::from(high[n]) + carry;
        *byte = sum as u8;
        carry = sum >> 8;
    }
    let mut carry = carry << 7;
    for byte in &mut middle {
        let next = u16::from(*byte & 1) << 7;
        *byte = (*byte >> 1) | carry as u8;
        carry = next;
    }
    (middle != *low && middle != *high).then_some(middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_between_keys_narrows_down_to_neighbours() {
        let (mut low, mut high) = (number(b"abc"), number(b"abd"));
        let target = number(b"abc\x07\xff\x31");
        while let Some(middle) = between(&low, &high) {
            if middle >= target { high = middle } else { low = middle }
        }
        assert_eq!(high, target);
        assert_eq!(add_bit(low, 0), Some(target));
        assert_eq!(add_bit([0xff; NUMBER], 0), None);
        assert_eq!(add_bit(number(b"a"), NUMBER * 8 - 8), Some(number(b"b")));
    }
}
