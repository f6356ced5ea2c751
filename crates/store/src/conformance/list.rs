//! The names of all tests, once: for [`super::run_all`] and for the macro.

use futures_util::FutureExt;

use super::kit::{Kit, TestFn};
use super::{
    claims, content, dead, drain, faults, fencing, keys, lease, loading, matrix, once, order, ownership,
    parking, random, requests, reschedule, retries, steps,
};

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

/// Hands the list of tests to a macro: those that take a kit, in groups, then those that take the
/// harness.
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
                acquire_gives_an_epoch_above_the_floor,
                acquire_repeated_with_its_nonce_is_success,
                an_old_nonce_acquires_nothing,
                epochs_only_rise,
                epochs_rise_over_a_restart,
                terms_only_rise,
                clocks_can_be_read,
                partitions_know_nothing_of_each_other,
                a_second_handle_sees_the_owner,
                the_next_owner_finds_everything,
                what_was_answered_is_stored,
                everything_survives_a_restart,
                release_closes_the_lane,
                release_hands_over_deliveries_under_way,
                handed_over_deliveries_stay_until_the_next_release,
                release_with_1000_deliveries,
                release_comes_after_what_was_called_before_it,
                a_claim_is_left_to_the_next_owner,
                a_release_takes_its_own_claims_back,
            }
            fencing {
                every_operation_is_refused,
                a_batch_is_refused_whole,
                claims_are_refused,
                loads_are_refused,
                an_empty_batch_is_refused,
                reads_are_refused,
                release_is_refused,
                every_later_call_is_refused_too,
                health_tells_that_the_lane_has_ended,
                an_owner_fenced_twice_is_refused,
                a_released_partition_is_fenced_no_less,
                a_former_owner_may_go_away,
                calls_on_their_way_are_applied_up_to_the_takeover,
                the_new_owner_decides_alone,
            }
            claims {
                an_empty_batch_can_carry_one,
                a_batch_can_carry_one,
                a_load_can_carry_one,
                a_load_of_nothing_can_carry_one,
                they_never_go_back,
                the_next_owner_learns_of_it,
                they_survive_a_restart,
                an_owners_own_claim_covers_nothing,
                a_successor_finds_covered_what_fires_up_to_it,
                what_a_successor_files_below_it_is_not_covered,
                what_one_filed_below_it_is_covered_for_the_next,
                a_refiled_timer_is_fresh_only_below_it,
                a_covered_timer_cannot_be_cancelled,
                a_covered_timer_cannot_be_rescheduled,
                the_attempt_rises_by_one_after_a_takeover,
                a_failed_covered_attempt_is_stored,
                a_parked_timer_is_never_covered,
                a_timer_back_from_the_park_is_fresh,
                parking_keeps_the_count_of_a_covered_attempt,
                a_late_ok_of_a_predecessor_settles_a_covered_timer,
                a_late_ok_of_a_failed_attempt_settles_the_retry,
            }
            once {
                a_taken_timer_is_not_pending,
                taking_twice_in_an_epoch_is_a_repeat,
                a_later_epoch_cannot_take_it_again,
                takes_survive_a_restart,
                a_batch_of_takes,
                an_at_least_once_timer_cannot_be_taken,
                a_parked_one_can_be_taken,
                taking_keeps_the_count_of_a_covered_attempt,
                one_that_was_not_sent_can_be_parked,
                ok_ends_it_and_is_remembered,
                ok_of_an_earlier_epochs_delivery_ends_it,
                a_failure_buries_it,
                a_cancel_of_one_that_was_sent_stops_it_wherever_it_goes,
                unconfirmed_is_listed_and_stays,
                a_successor_can_give_up_on_it,
                only_a_taken_one_becomes_unconfirmed,
                a_replay_counts_the_unconfirmed_attempt,
                a_purge_removes_the_unconfirmed_only,
                its_key_is_held_while_taken_and_free_when_unconfirmed,
                a_taken_one_can_be_replaced,
                taken_timers_are_listed_in_pages,
                the_unconfirmed_are_listed_oldest_first_in_pages,
                the_unconfirmed_outlive_their_owner,
                the_unconfirmed_are_trimmed_by_age,
                the_unconfirmed_are_trimmed_by_count_in_portions,
                a_trim_spares_what_is_taken_and_dead,
                the_end_of_one_long_unconfirmed_is_forgotten,
            }
            keys {
                create_refuses_a_key_in_use,
                keep_answers_with_the_holder,
                keep_tells_whether_an_attempt_may_have_begun,
                replace_ends_the_holder,
                replace_takes_it_from_whatever_holds_it,
                replace_does_not_touch_a_dead_letter,
                a_chain_of_replacements,
                an_ack_frees_it,
                a_cancel_frees_it,
                expiry_frees_it,
                death_frees_it,
                a_late_ok_frees_it,
                being_stopped_frees_it,
                moves_do_not_free_it,
                cancel_reschedule_and_get_accept_it,
                an_unknown_one_is_not_found,
                it_belongs_to_a_destination,
                a_replay_takes_it_back,
                a_replay_into_a_taken_key_is_refused,
                a_purge_leaves_it_to_its_holder,
                a_thousand_keys,
            }
            requests {
                a_schedule_is_filed_at_its_time,
                a_repeated_schedule_is_the_same,
                a_repeat_in_one_batch_is_the_same,
                a_repeat_after_a_reschedule_does_not_undo_it,
                every_difference_is_a_conflict,
                a_repeat_in_another_trace_is_the_same,
                a_cancelled_timer_stays_cancelled,
                an_expired_timer_stays_expired,
                an_acknowledged_timer_leaves_no_trace,
                a_cancel_that_overtakes_its_schedule_wins,
                a_reschedule_of_an_unknown_id_leaves_no_trace,
                a_dead_timer_is_scheduled_already,
                a_purged_timer_stays_ended,
                a_repeated_cancel_gives_the_old_answer,
                a_repeated_cancel_that_was_too_late_stays_so,
                a_repeated_keyed_cancel_spares_the_next_holder,
                a_repeated_cancel_of_an_unknown_key_spares_its_first_holder,
                a_repeated_reschedule_does_not_undo_a_later_one,
                a_repeated_reschedule_outlives_its_owner,
                a_repeat_in_one_batch_counts_once,
                a_cancel_of_a_sent_timer_stops_what_follows,
                an_ok_settles_a_stopped_timer,
                a_stopped_timer_is_not_retried,
                a_cancel_between_retries_buries_it,
            }
            reschedule {
                nearer,
                farther,
                within_its_slot,
                into_the_past,
                many_times_and_back,
                it_is_loaded_at_the_new_time_only,
                it_stays_moved_for_the_next_owner,
                its_birth_width_does_not_matter,
                in_one_batch_with_its_schedule_and_end,
                a_parked_timer_leaves_the_park,
                not_past_its_deadline,
                not_once_it_was_delivered,
                a_thousand_at_once,
            }
            retries {
                a_retry_waits_in_its_tier,
                it_is_loaded_in_time,
                through_all_tiers,
                a_repeat_changes_nothing,
                an_empty_error_is_none,
                a_long_error_is_cut,
                many_tiers_side_by_side,
                it_can_be_parked_and_returns_in_tier_0,
                it_ends_in_the_dead_letters,
                only_a_pending_timer_is_retried,
                what_is_filed_again_is_not_filed_before_its_due_time,
            }
            parking {
                a_parked_timer_is_not_loaded,
                it_comes_back_at_the_time_asked_for,
                to_park_and_unpark_twice_is_a_repeat,
                what_is_elsewhere_is_gone,
                destinations_are_apart,
                many_destinations,
                pages_show_each_timer_once,
                pages_while_timers_come_and_go,
                a_destination_is_emptied_page_by_page,
                about_the_longest_parked_come_first,
                the_park_outlives_its_owner,
            }
            dead {
                a_letter_is_complete,
                the_first_death_counts,
                an_error_is_cut_at_512_bytes,
                it_dies_in_the_park_and_taken,
                a_dead_timer_is_out_of_reach,
                the_oldest_come_first,
                pages_show_each_letter_once,
                many_that_died_together_are_listed_once,
                filters_by_group_and_app,
                a_replay_brings_it_back,
                a_replayed_timer_can_die_again,
                a_replay_forgets_that_it_was_stopped,
                a_replay_drops_a_deadline_that_has_passed,
                only_the_dead_and_unconfirmed_are_replayed,
                hundreds_are_replayed,
                a_purge_removes_one,
                a_purge_spares_the_living,
                the_end_of_one_long_dead_is_forgotten,
                trim_by_age,
                trim_by_count,
                trim_in_portions,
                trim_by_age_and_count,
                trim_of_nothing,
                trimmed_timers_stay_ended,
            }
            loading {
                an_empty_partition_is_loaded_at_once,
                what_is_due_is_loaded,
                a_timer_is_loaded_as_it_is,
                a_timer_is_loaded_exactly_for_its_time,
                a_load_below_the_horizon_keeps_it,
                what_is_scheduled_above_the_horizon_is_loaded_later,
                every_width_and_its_boundaries,
                ids_of_any_birth_width,
                a_wide_window_receives_more_after_a_load,
                calls_take_their_place_when_they_are_made,
                a_load_brings_nothing_back,
                loads_follow_one_another_without_waiting,
                unload_and_load_again,
                unload_above_the_horizon_changes_nothing,
                unload_with_a_load_behind_it,
                what_was_filed_while_unloaded_is_loaded,
                the_next_owner_starts_from_nothing,
                replaced_timers_are_not_loaded,
            }
            steps {
                a_full_wide_window_is_loaded_in_parts,
                max_timers_is_kept_about,
                max_bytes_is_kept_about,
                the_smallest_steps_come_to_an_end,
                a_payload_larger_than_max_bytes_is_loaded,
                new_timers_between_the_steps_are_not_lost,
                timers_that_move_between_the_steps_are_not_lost,
                three_thousand_in_one_second,
                a_thousand_in_one_millisecond,
                a_takeover_in_the_middle_of_a_wide_window,
                a_restart_in_the_middle_of_a_wide_window,
                a_crowded_millisecond_receives_more_between_the_steps,
                a_crowded_millisecond_is_unloaded_half_way,
            }
            order {
                an_empty_batch_has_no_answers,
                answers_are_in_the_order_of_operations,
                batches_take_effect_in_the_order_of_calls,
                answers_are_ready_in_the_order_of_calls,
                an_abandoned_call_is_made_all_the_same,
                reads_see_what_was_called_before_them,
                a_batch_of_2000,
                many_batches_on_their_way,
                partitions_do_not_wait_for_each_other,
            }
            content {
                an_empty_payload,
                a_payload_of_every_byte,
                payloads_of_many_sizes,
                a_batch_of_the_largest_payloads,
                every_optional_field,
                headers_of_every_size_and_kind,
                headers_survive_whatever_happens_to_a_timer,
                retry_tiers_none_and_the_most,
                a_deadline_at_the_due_time_and_years_later,
                odd_keys,
                keys_that_look_alike_are_different,
                the_longest_key_and_names,
                odd_names,
                names_are_not_run_together,
                many_destinations_come_back_right,
                odd_errors,
                the_same_random_part_at_other_times,
                an_id_is_dead_or_alive_in_one_place_only,
            }
            drain {
                the_census_counts_what_is_there,
                after_acknowledgements,
                after_cancels,
                after_expiry,
                after_takes,
                after_unconfirmed_ones_were_purged,
                after_retries,
                after_parking,
                after_reschedules,
                after_purges,
                after_a_trim,
                after_a_trim_of_unconfirmed_ones,
                after_replays,
                after_replacements,
                after_requests_for_unknown_timers,
                after_wide_windows_were_loaded_bit_by_bit,
                after_a_handover,
                it_can_be_filled_again,
            }
            faults {
                each_operation_with_its_answer_lost,
                each_operation_with_its_call_lost,
                many_batches_with_an_answer_lost,
                many_batches_with_a_call_lost,
                a_load_with_its_answer_lost,
                a_release_with_its_answer_lost,
                calls_wait_while_the_store_is_away,
                a_lane_survives_many_outages,
                a_full_store_refuses_what_adds,
                a_full_store_does_everything_else,
                a_full_store_refuses_a_batch_in_part_only,
                a_refusal_by_a_full_store_is_not_final,
                outcomes_are_forgotten_after_the_horizon,
            }
            lease {
                the_first_campaign_wins,
                somebody_else_sees_who_has_it,
                a_look_says_who_has_it_and_takes_nothing,
                a_repeated_campaign_keeps_its_term,
                another_life_of_the_holder_wins_at_once,
                of_many_candidates_one_wins,
                it_runs_out_by_itself,
                a_renewed_one_lasts_as_long_as_it_is_renewed_for,
                only_the_holder_renews,
                a_resigned_one_is_free,
                only_the_holder_resigns,
                the_next_winner_gets_what_was_published_last,
                only_the_holder_publishes,
                its_terms_and_raised_terms_rise_together,
                terms_rise_over_a_restart,
                a_term_is_above_what_the_candidate_has_seen,
                in_a_full_store_it_goes_on,
                a_lost_answer_changes_nothing,
                while_the_store_is_away_nothing_is_answered,
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
                settle_ack,
                settle_late_ack,
                settle_retry_in_a_tier,
                settle_dead,
                settle_expired,
                settle_unconfirmed,
            };
            operations_agree_with_the_reference,
            operations_agree_through_faults,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    #[test]
    fn each_operation_on_one_timer_has_a_case_in_the_matrix() {
        for (operation, _) in Op::ALL.iter().filter(|(name, _)| *name != "Trim") {
            let test = format!("matrix::{}", operation.to_lowercase());
            assert!(names().any(|name| name.starts_with(&test)), "no test begins with {test}");
        }
    }
}
