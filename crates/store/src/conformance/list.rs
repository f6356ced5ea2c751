//! The names of all tests, once: for [`super::run_all`] and for the macro.

use futures_util::FutureExt;

use super::kit::{Kit, TestFn};
use super::{matrix, ownership, random};

/// Makes one `#[test]` of every conformance test. The argument is called to make a [`Harness`](crate::conformance::Harness).
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        $crate::conformance_list! { [$crate::conformance_as_tests] $make }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_as_tests {
    ($make:expr; $($group:ident { $($test:ident,)* })*; $($whole:ident,)*) => {
        $(mod $group {
            #[allow(unused_imports)]
            use super::*;
            $(#[test]
            fn $test() {
                $crate::conformance::run_as_test(concat!(stringify!($group), "::", stringify!($test)), $make);
            })*
        })*
        mod random {
            #[allow(unused_imports)]
            use super::*;
            $(#[test]
            fn $whole() {
                $crate::conformance::run_as_test(concat!("random::", stringify!($whole)), $make);
            })*
        }
    };
}

macro_rules! as_table {
    ($make:expr; $($group:ident { $($test:ident,)* })*; $($whole:ident,)*) => {
        const TESTS: &[(&str, TestFn)] = &[
            $($((
                concat!(stringify!($group), "::", stringify!($test)),
                |harness| async move { $group::$test(Kit::new(harness).await).await }.boxed(),
            ),)*)*
            $((concat!("random::", stringify!($whole)), |harness| random::$whole(harness).boxed()),)*
        ];
    };
}

/// Hands the list of tests to a macro: those that take a kit, in groups, then those that take the harness.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_list {
    ([$($to:tt)+] $make:expr) => {
        $($to)+! {
            $make;
            ownership {
                a_new_partition_has_no_owner,
                acquire_is_recorded,
                acquire_with_another_epoch_is_refused,
                acquire_with_an_assignment_that_is_not_newer_is_refused,
                acquire_under_a_higher_term_may_have_a_lower_version,
                acquire_repeated_with_its_nonce_is_success,
                an_old_nonce_acquires_nothing,
                epochs_only_rise,
                epochs_rise_over_a_restart,
                terms_only_rise,
                clocks_can_be_read,
                partitions_know_nothing_of_each_other,
                a_second_handle_sees_the_owner,
                the_next_owner_finds_everything,
                everything_survives_a_restart,
                release_closes_the_lane,
                release_leaves_word_of_deliveries_under_way,
                word_of_deliveries_stays_until_the_next_release,
                release_with_1000_deliveries,
                release_comes_after_what_was_called_before_it,
                a_claim_is_left_to_the_next_owner,
            }
            matrix {
                schedule_the_same,
                schedule_other_content,
                schedule_into_its_key,
                cancel_by_id,
                cancel_by_key,
                reschedule_by_id,
                reschedule_by_key,
                take,
                park,
                unpark,
                replay,
                purge,
                ack,
                late_ack,
                retry_in_a_tier,
                dead,
                expired,
                unconfirmed,
            };
            operations_agree_with_the_reference,
        }
    };
}

conformance_list! { [as_table] () }

/// The names of all tests, in the order in which they are run.
pub fn names() -> impl Iterator<Item = &'static str> {
    TESTS.iter().map(|(name, _)| *name)
}

pub(super) fn find(name: &str) -> Option<TestFn> {
    TESTS.iter().find(|(known, _)| *known == name).map(|(_, test)| *test)
}
