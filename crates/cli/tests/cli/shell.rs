//! Completions and manual pages.

use std::process::Command;

use crate::harness::run;

#[test]
fn bash_completes_commands_flags_and_values() {
    let script = run(&["completions", "bash"]).ok().out;
    for (words, completed) in [
        (&["mtimer", "sch"][..], "schedule"),
        (&["mtimer", "dead", "rep"], "replay"),
        (&["mtimer", "broker", "--park"], "--park-after"),
        (&["mtimer", "broker", "--durability", "embedded-s"], "embedded-sync"),
    ] {
        let (last, before) = (words.len() - 1, words[words.len() - 2]);
        let ask = format!(
            "{script}\nCOMP_WORDS=({})\nCOMP_CWORD={last}\n_mtimer mtimer '{}' '{before}'\necho \"${{COMPREPLY[*]}}\"",
            words.join(" "),
            words[last],
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, ask).unwrap();
        let told = Command::new("bash").arg("--norc").arg(file.path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&told.stdout).trim(), completed, "{words:?}: {told:?}");
    }
}

#[test]
fn every_shell_has_completions_of_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = run(&["completions", shell]).ok().out;
        for part in ["schedule", "listen", "unconfirmed", "park-after"] {
            assert!(script.contains(part), "{shell}: {part}");
        }
    }
    let refused = run(&["completions", "tcsh"]).code(2).err;
    assert!(refused.contains("possible values: bash"), "{refused}");
}

#[test]
fn manual_pages_say_what_the_help_says() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("man/man1");
    let told = run(&["man", dir.to_str().unwrap(), "--json"]).ok().json();
    let pages: Vec<String> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(told["pages"], pages.len());
    let page = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(page("mtimer.1").contains("Exit codes:"));
    assert!(page("mtimer-dead-replay.1").contains("mtimer dead replay"));
    assert!(page("mtimer-broker.1").contains("[default: 127.0.0.1:7400]"));
    assert!(!pages.iter().any(|name| name.contains("bench-broker") || name.contains("help")), "{pages:?}");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let refused = run(&["man", file.to_str().unwrap()]).code(1).err;
    assert!(refused.contains("cannot write manual pages to") && refused.contains("file"), "{refused}");
}
