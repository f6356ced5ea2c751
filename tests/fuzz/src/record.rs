//! The bytes of a timer in a store.

use bytes::Bytes;
use mtimer_store::Record;
use mtimer_types::{Destination, TimerId};

use crate::bounded::bounded;

/// The first 16 bytes are the id, the rest is the record. What is read is written and read back as
/// the same.
pub(crate) fn record(data: &[u8]) {
    let Some((id, bytes)) = data.split_first_chunk() else { return };
    let id = TimerId::from_bytes(*id);
    let bytes = Bytes::copy_from_slice(bytes);
    let Ok(dest) = Destination::new("g", "a") else { return };
    let mut number = 0;
    let read = bounded(data, 16 * 1024, 8, || {
        Record::decode(id, &bytes, |n| {
            number = n;
            (n != 7).then(|| dest.clone())
        })
    });
    let Ok(record) = read else { return };
    let mut out = Vec::new();
    record.encode(number, &mut out);
    let again = Record::decode(id, &out.into(), |n| (n == number).then(|| dest.clone()));
    assert_eq!(again.as_ref(), Ok(&record));
    for covered in [false, true] {
        assert!(record.attempt(covered) >= record.progress.failed);
    }
}
