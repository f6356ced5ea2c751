//! A damaged data directory: the broker refuses it and says where; `repair` keeps the rest.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::harness::{Dev, run};

#[test]
fn a_damaged_directory_is_refused_with_its_place_and_repaired() {
    let mut dev = Dev::start();
    for _ in 0..3 {
        dev.schedule(&["--in", "10h", "--payload", "a payload to look for"]);
    }
    let folder = dev.data.path().join("timers");
    let data = folder.to_str().unwrap();
    assert!(
        run(&["repair", "--data", data, "--yes"]).code(13).err.contains("in use by another mtimer process")
    );
    assert_eq!(dev.stop(), 0);
    let sound = run(&["repair", "--data", data, "--yes", "--json"]).ok().json();
    assert_eq!((&sound["timers_kept"], sound["damages"].as_array().unwrap().len()), (&3.into(), 0));

    // One byte of the second timer.
    let path = folder.join("db/0.jnl");
    let bytes = std::fs::read(&path).unwrap();
    let payloads = bytes.windows(21).enumerate().filter(|(_, window)| *window == b"a payload to look for");
    let (at, _) = payloads.take(3).nth(1).unwrap();
    File::options().write(true).open(&path).unwrap().write_all_at(b"A", at as u64).unwrap();

    let refused = run(&["broker", "--listen", "127.0.0.1:0", "--data", data]).code(12);
    for part in ["0.jnl at offset ", "the checksum does not match", &format!("mtimer repair --data {data}")] {
        assert!(refused.err.contains(part), "{part}: {}", refused.err);
    }
    let planned = run(&["repair", "--data", data, "--dry-run", "--json"]).code(9).json();
    assert_eq!((&planned["timers_kept"], planned["kept_in"].is_null()), (&2.into(), true));
    assert_eq!(planned["damages"][0]["batches_lost"], 1);
    run(&["broker", "--listen", "127.0.0.1:0", "--data", data]).code(12);
    let repaired = run(&["repair", "--data", data, "--yes"]).code(9);
    for part in ["0.jnl at offset ", "1 answered batch is lost", "timers kept: 2", "before-repair-"] {
        assert!(repaired.out.contains(part), "{part}: {}", repaired.out);
    }
    assert!(run(&["repair", "--data", data, "--yes"]).ok().out.contains("nothing is damaged"));
    assert_eq!(run(&["repair", "--yes", "--data", dev.data.path().to_str().unwrap()]).code, 2);
}

#[test]
fn a_repair_without_yes_changes_nothing_where_nobody_can_be_asked() {
    let folder = tempfile::tempdir().unwrap();
    let refused = run(&["repair", "--data", folder.path().to_str().unwrap()]).code(2);
    assert!(refused.err.contains("without what is damaged: give --yes"), "{refused:?}");
    let refused = run(&["cluster", "drain", "127.0.0.1:1"]).code(2);
    assert!(refused.err.contains("this takes all partitions from 127.0.0.1:1: give --yes"), "{refused:?}");
}
