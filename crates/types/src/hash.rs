//! The hash by which keyed timers are placed. It is a part of the protocol: other implementations
//! have to agree.

/// FNV-1a, 64 bits (Fowler, Noll, Vo), finished with the 64-bit finalizer of MurmurHash3.
#[derive(Clone, Copy, Debug)]
pub struct Fnv64(u64);

impl Default for Fnv64 {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv64 {
    /// Takes up more bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Returns the hash of all bytes.
    pub const fn finish(self) -> u64 {
        mix(self.0)
    }
}

/// The 64-bit finalizer of MurmurHash3 (Appleby, 2011): every bit depends on all others.
pub(crate) const fn mix(mut h: u64) -> u64 {
    h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ (h >> 33)
}
