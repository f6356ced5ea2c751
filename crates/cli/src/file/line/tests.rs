use super::*;

fn maker() -> Maker {
    let defaults = Fields { group: Some("g".into()), app: Some("a".into()), ..Fields::default() };
    Maker { defaults, policy: None, repeatable: true, partitions: 8, dest: None }
}

fn made(text: &str) -> Result<Schedule, String> {
    maker().schedule(Fields::parse(text.as_bytes())?, Time::from_ms(1_000))
}

/// The parts of a schedule are its own; its debug form shows them.
fn shown(text: &str) -> String {
    format!("{:?}", made(text).unwrap())
}

#[test]
fn everything_that_a_line_can_say() {
    let text = shown(
        r#"{"at": 5000, "group": "x", "app": "y", "key": "k", "payload": "héllo", "mode": "at-most-once", "priority": "high",
            "deadline": "2s", "retry": ["1s", "5s"], "callback_timeout": "3s"}"#,
    );
    for part in ["x/y", "\"k\"", "5000ms", "AtMostOnce", "High", "At(7000ms)", "[1000, 5000]", "3s", "Keep"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(shown(r#"{"in": "1500ms", "payload_base64": "AAH/"}"#).contains(r#"b"\0\x01\xff""#));
    assert!(shown(r#"{"in": "5s", "payload": {"a": 1}}"#).contains(r#"b"{\"a\": 1}""#));
    assert!(shown(r#"{"in": "5s", "deadline": 9000}"#).contains("At(9000ms)"));
    assert!(shown(r#"{"in": "5s", "retry": ""}"#).contains("RetryTiers([])"));
}

#[test]
fn every_wrong_line_has_its_reason() {
    for (line, reason) in [
        ("{", "EOF while parsing an object (column 1)"),
        (r#"{"in": "5s", "grup": "x"}"#, "unknown field `grup`"),
        (r#"{"payload": "x"}"#, "it does not say when: give \"in\" or \"at\""),
        (r#"{"in": "5s", "at": 5}"#, "it has both \"in\" and \"at\""),
        (r#"{"in": 5}"#, "invalid type: integer `5`, expected a string"),
        (r#"{"in": "soon"}"#, "\"soon\" is not a duration"),
        (r#"{"at": "soon"}"#, "\"soon\" is not a time"),
        (r#"{"at": -5}"#, "expected a time"),
        (r#"{"in": "5s", "payload": {"a"}}"#, "expected `:`"),
        (r#"{"in": "5s", "key": {}}"#, "invalid type: map, expected a string"),
        (r#"{"in": "5s", "payload": "a", "payload_base64": "AA=="}"#, "it has both \"payload\""),
        (r#"{"in": "5s", "payload_base64": "?"}"#, "is not base 64"),
        (r#"{"in": "5s", "mode": "twice"}"#, "unknown variant `twice`"),
        (r#"{"in": "5s", "priority": "top"}"#, "unknown variant `top`"),
        (r#"{"in": "5s", "retry": "1s,x"}"#, "\"x\" is not a duration"),
        (r#"{"in": "5s", "id": "x", "key": "y"}"#, "it has both an \"id\" and a \"key\""),
        (r#"{"in": "5s", "key": ""}"#, "the key is empty"),
        (r#"{"in": "5s", "group": ""}"#, "the group is empty"),
        (r#"{"in": "5s"} {"in": "6s"}"#, "trailing characters"),
    ] {
        let error = made(line).unwrap_err();
        assert!(error.contains(reason), "{line}: {error}");
    }
    let mut without = Maker { defaults: Fields::default(), ..maker() };
    let error = without.schedule(Fields::parse(br#"{"in": "5s"}"#).unwrap(), Time::ZERO).unwrap_err();
    assert_eq!(error, "it names no group, and there is no --group for lines without");
}

fn id_in(text: &str) -> Option<String> {
    let start = text.find("id: Some(")? + "id: Some(".len();
    Some(text[start..].chars().take(26).collect())
}

#[test]
fn an_id_made_for_the_time_is_one_and_any_other_is_a_key() {
    let id = TimerId::new(Time::from_ms(5_000), Time::ZERO, PartitionId(3), 42);
    let own = shown(&format!(r#"{{"at": 5000, "id": "{id}"}}"#));
    assert_eq!(id_in(&own), Some(id.to_string()));
    assert!(own.contains("key: None"));
    for other in [format!(r#"{{"at": 5001, "id": "{id}"}}"#), format!(r#"{{"in": "5s", "id": "{id}"}}"#)] {
        let text = shown(&other);
        assert!(text.contains(&format!("key: Some(\"{id}\")")) && text.contains("Keep"), "{text}");
    }
}

#[test]
fn the_same_line_is_the_same_timer() {
    let line = r#"{"at": 5000, "key": "k", "payload": "p"}"#;
    let id = id_in(&shown(line));
    assert!(id.is_some());
    assert_eq!(id_in(&shown(line)), id);
    for other in [
        r#"{"at": 5000, "key": "k", "payload": "q"}"#,
        r#"{"at": 5000, "key": "l", "payload": "p"}"#,
        r#"{"at": 5001, "key": "k", "payload": "p"}"#,
        r#"{"at": 5000, "key": "k", "payload": "p", "app": "b"}"#,
        r#"{"at": 5000, "key": "k", "payload": "p", "mode": "at-most-once"}"#,
        r#"{"at": 5000, "key": "k", "payload": "p", "headers": {"a": "1"}}"#,
    ] {
        assert_ne!(id_in(&shown(other)), id, "{other}");
    }
    let traced = r#"{"at": 5000, "key": "k", "payload": "p", "headers": {"traceparent": "1"}}"#;
    assert_eq!(id_in(&shown(traced)), id, "the trace is no content");
    assert_eq!(
        id_in(&shown(r#"{"in": "5s", "key": "k"}"#)),
        None,
        "when it is due is not known before it is sent"
    );
    assert_eq!(id_in(&shown(r#"{"at": 5000}"#)), None, "two equal lines without a name are two timers");
}
