//! Numbers of variable length, as in the wire protocol: below 251 the byte is the number; 251 is
//! followed by two bytes of it, 252 by four, little endian.

/// Bytes that are no number in its shortest form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BadVarint {
    /// They end within it.
    CutOff,
    /// It is too large, or not in its shortest form.
    Form,
}

pub(crate) fn put_varint(n: u32, out: &mut Vec<u8>) {
    match (u8::try_from(n), u16::try_from(n)) {
        (Ok(n), _) if n < TWO_BYTES => out.push(n),
        (_, Ok(n)) => {
            out.push(TWO_BYTES);
            out.extend_from_slice(&n.to_le_bytes());
        }
        _ => {
            out.push(FOUR_BYTES);
            out.extend_from_slice(&n.to_le_bytes());
        }
    }
}

pub(crate) fn take_varint(rest: &mut &[u8]) -> Result<u32, BadVarint> {
    let [first] = take(rest)?;
    let (n, least) = match first {
        TWO_BYTES => (u16::from_le_bytes(take(rest)?).into(), u32::from(TWO_BYTES)),
        FOUR_BYTES => (u32::from_le_bytes(take(rest)?), 1 << 16),
        first => (first.into(), 0),
    };
    if first > FOUR_BYTES || n < least { Err(BadVarint::Form) } else { Ok(n) }
}

/// First bytes of varints that have two and four more.
const TWO_BYTES: u8 = 251;
const FOUR_BYTES: u8 = 252;

pub(crate) fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], BadVarint> {
    let (taken, after) = rest.split_first_chunk().ok_or(BadVarint::CutOff)?;
    *rest = after;
    Ok(*taken)
}
