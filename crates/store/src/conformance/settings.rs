//! The settings of destinations.

use mtimer_types::limits::{MAX_CONFIGURED_DESTINATIONS, MAX_PAUSE_TEXT_BYTES};
use mtimer_types::{
    DeliveryLimits, DeliveryRate, Destination, DestinationSettings, Pause, SettingsVersion, StoredSettings,
};

use super::kit::Kit;
use super::owner::Owner;
use super::values::{DAY, dest, other_dest};
use crate::Op;
use crate::ops::{Configure, ConfigureAnswer};

const FIRST: SettingsVersion = SettingsVersion::After(0);

fn paused(reason: &str) -> DestinationSettings {
    let pause = Pause { reason: reason.into(), ..Pause::default() };
    DestinationSettings { pause: Some(pause), ..DestinationSettings::default() }
}

fn configure(dest: &Destination, settings: &DestinationSettings, version: SettingsVersion) -> Op {
    Configure { dest: dest.clone(), settings: settings.clone().into(), version }.into()
}

fn done(dest: &Destination, settings: &DestinationSettings, version: u64) -> ConfigureAnswer {
    let (dest, settings) = (dest.clone(), settings.clone());
    ConfigureAnswer::Done(StoredSettings { dest, version, settings }.into())
}

async fn set(
    owner: &Owner,
    dest: &Destination,
    settings: &DestinationSettings,
    version: SettingsVersion,
) -> ConfigureAnswer {
    owner.configure(Configure { dest: dest.clone(), settings: settings.clone().into(), version }).await
}

pub(super) async fn the_next_owner_finds_them(mut kit: Kit) {
    let owner = kit.owner().await;
    assert_eq!(owner.settings().await, []);
    let (since, until) = (kit.now, Some(kit.now + DAY));
    let text = || "ü".repeat(MAX_PAUSE_TEXT_BYTES / 2);
    let pause = Pause { since, until, over_ms: 5_000, by: text(), reason: text() };
    let rate = DeliveryRate { starts: 10, per_ms: 60_000, burst: 3 };
    let limits = DeliveryLimits { concurrency: Some(7), rate: Some(rate) };
    let full = DestinationSettings { pause: Some(pause), strict_priority: true, limits };
    assert_eq!(set(&owner, &dest(), &full, FIRST).await, done(&dest(), &full, 1));
    let none = DestinationSettings::default();
    assert_eq!(set(&owner, &other_dest(), &none, FIRST).await, done(&other_dest(), &none, 2));
    let settings = owner.settings().await;
    assert_eq!(settings.len(), 2);
    assert!(settings.iter().any(|row| row.dest == dest() && row.version == 1 && row.settings == full));
    assert!(settings.iter().any(|row| row.dest == other_dest() && row.version == 2));
    assert_eq!(kit.owner().await.settings().await, settings);
}

pub(super) async fn they_survive_a_restart(mut kit: Kit) {
    let owner = kit.owner().await;
    set(&owner, &dest(), &paused("a"), FIRST).await;
    set(&owner, &dest(), &paused("b"), SettingsVersion::After(1)).await;
    let settings = owner.settings().await;
    assert_eq!((settings.len(), settings[0].version), (1, 2));
    drop(owner);
    if !kit.restart().await {
        return;
    }
    let owner = kit.owner().await;
    assert_eq!(owner.settings().await, settings);
}

pub(super) async fn of_two_changes_of_one_version_the_second_is_told(mut kit: Kit) {
    let owner = kit.owner().await;
    let (a, b) = (paused("a"), paused("b"));
    let answers = owner
        .apply(vec![
            configure(&dest(), &a, FIRST),
            configure(&dest(), &b, FIRST),
            configure(&dest(), &a, FIRST),
            configure(&dest(), &b, SettingsVersion::After(1)),
            configure(&dest(), &a, FIRST),
        ])
        .await;
    let expected = [
        done(&dest(), &a, 1),
        ConfigureAnswer::Changed(1),
        done(&dest(), &a, 1),
        done(&dest(), &b, 2),
        ConfigureAnswer::Changed(2),
    ];
    assert_eq!(answers, expected.map(crate::Answer::Configure));
}

pub(super) async fn copies_hold_the_highest_version_in_any_order(mut kit: Kit) {
    let owner = kit.owner().await;
    let (a, b) = (paused("a"), paused("b"));
    let given = SettingsVersion::Given;
    assert_eq!(set(&owner, &dest(), &b, given(7)).await, done(&dest(), &b, 7));
    assert_eq!(set(&owner, &dest(), &a, given(5)).await, done(&dest(), &b, 7), "an older one");
    assert_eq!(set(&owner, &dest(), &b, given(7)).await, done(&dest(), &b, 7), "a repeat");
    assert_eq!(set(&owner, &other_dest(), &a, given(5)).await, done(&other_dest(), &a, 5));
    assert_eq!(set(&owner, &dest(), &a, given(8)).await, done(&dest(), &a, 8));
    let versions = |rows: Vec<StoredSettings>| rows.iter().map(|row| row.version).collect::<Vec<_>>();
    let mut stored = versions(kit.owner().await.settings().await);
    stored.sort_unstable();
    assert_eq!(stored, [5, 8]);
}

pub(super) async fn there_are_no_more_than_may_be(mut kit: Kit) {
    let owner = kit.owner().await;
    let name = |n: usize| Destination::new("many", &format!("{n}")).unwrap();
    let all = 0..MAX_CONFIGURED_DESTINATIONS;
    let ops = all.map(|n| configure(&name(n), &paused("x"), FIRST)).collect();
    owner.apply(ops).await;
    let limit = MAX_CONFIGURED_DESTINATIONS;
    let one_more = async |owner: &Owner| set(owner, &name(limit), &paused("x"), FIRST).await;
    assert_eq!(one_more(&owner).await, ConfigureAnswer::TooMany(limit as u32));
    set(&owner, &name(3), &DestinationSettings::default(), SettingsVersion::After(4)).await;
    set(&owner, &name(5), &paused("y"), SettingsVersion::After(6)).await;
    let next = limit as u64 + 3;
    assert_eq!(one_more(&owner).await, done(&name(limit), &paused("x"), next), "in place of idle ones");
    let after = kit.owner().await.settings().await;
    assert_eq!(after.len(), limit);
    assert!(after.iter().all(|row| row.dest != name(3)), "that was stored, too");
}
