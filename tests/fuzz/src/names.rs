//! Ids, keys, destinations and times in their text and JSON forms.

use mtimer_types::{Destination, Headers, Key, Target, Time, Timer, TimerId};

pub(crate) fn names(data: &[u8]) {
    if let Some(bytes) = data.first_chunk() {
        let id = TimerId::from_bytes(*bytes);
        assert_eq!(id.to_bytes(), *bytes);
        assert_eq!(id.to_string().parse::<TimerId>(), Ok(id));
        let made = TimerId::with_width(id.birth_due(), id.birth_width(), id.partition(), id.random());
        assert_eq!(made, id);
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(id) = text.parse::<TimerId>() {
        assert_eq!(id.to_string(), text.to_ascii_lowercase());
    }
    if let Ok(key) = Key::new(text) {
        assert_eq!(key.as_str(), text);
        json(&key);
    }
    let (group, app) = text.split_once('/').unwrap_or((text, text));
    if let Ok(dest) = Destination::new(group, app) {
        assert_eq!((dest.group(), dest.app()), (group, app));
        json(&dest);
    }
    if let Ok(headers) = Headers::new(text.lines().filter_map(|line| line.split_once('='))) {
        assert!(headers.iter().is_sorted_by(|(a, _), (b, _)| a < b));
        assert!(headers.iter().all(|(name, value)| headers.get(name) == Some(value)));
        json(&headers);
    }
    for_json::<Headers>(text);
    for_json::<TimerId>(text);
    for_json::<Time>(text);
    for_json::<Target>(text);
    for_json::<Timer>(text);
}

/// What is read from JSON is written and read back as the same.
fn for_json<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(text: &str) {
    if let Ok(value) = serde_json::from_str::<T>(text) {
        json(&value);
    }
}

fn json<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    let text = serde_json::to_string(value).expect("every value has a text");
    assert_eq!(serde_json::from_str::<T>(&text).expect("what is written can be read"), *value);
}
