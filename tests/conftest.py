"""Fixtures for every test."""

from __future__ import annotations

import os
import signal

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts tests in the background has them ignore Ctrl-C, and so would every process that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_isoscale_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own ISOSCALE_ variables must not change what a test does."""
    for name in list(os.environ):
        if name.startswith("ISOSCALE_"):
            monkeypatch.delenv(name)


#: take minutes together and vary what others show; run with `pytest --long`
LONG = (
    "tests/elastic/test_stories.py::test_death_in_a_step",
    "tests/elastic/test_stories.py::test_death_between_steps",
    "tests/elastic/test_stories.py::test_death_of_a_newcomer",
    "tests/elastic/test_stories.py::test_death_of_one_who_gives_the_state_to_a_newcomer",
    "tests/elastic/test_stories.py::test_death_while_others_recover_from_a_death",
    "tests/elastic/test_stories.py::test_all_die_and_their_successors_begin_at_the_checkpoint",
    "tests/elastic/test_whole_fleet.py::test_the_one_who_hands_over_dies[f",
    "tests/elastic/test_whole_fleet.py::test_the_one_who_hands_over_dies[switch",
    "tests/elastic/test_whole_fleet.py::test_the_one_who_hands_over_dies[handover",
    "tests/elastic/test_whole_fleet.py::test_another_one_who_leaves_dies",
    "tests/elastic/test_whole_fleet.py::test_a_newcomer_dies_when_it_has_the_state",
    "tests/elastic/test_whole_fleet.py::test_the_coordinator_dies_in_the_midst_of_it[leaving",
    "tests/elastic/test_whole_fleet.py::test_something_else_is_wanted_in_the_midst_of_it",
    "tests/elastic/test_stopping.py::test_the_first_executor_dies_at_the_last_checkpoint[checkpointed",
    "tests/elastic/test_stopping.py::test_a_stop_while_executors_come_and_go",
    "tests/elastic/test_stopping.py::test_the_coordinator_dies_when_it_has_accepted_a_stop",
    "tests/elastic/test_stopping.py::test_those_who_wait_are_told_when_the_target_is_given_up",
    "tests/elastic/test_stopping.py::test_a_term_signal_does_not_wait_longer_than_a_notice_lasts",
    "tests/elastic/test_stories.py::test_an_executor_joins_from_another_directory",
    "tests/elastic/test_stories.py::test_the_job_ends_before_another_coordinator_comes",
    "tests/elastic/test_stories.py::test_chance_and_other_ways_to_read",
    "tests/elastic/test_trust.py::test_a_new_coordinator_that_is_stopped_while_it_takes_over",
    "tests/elastic/test_trust.py::test_newcomers_that_die_again_and_again_are_given_up_with_a_way_to_go_on",
    "tests/elastic/test_trust.py::test_a_turn_that_ends_whoever_runs_it_ends_the_job",
    "tests/elastic/test_frozen_code.py::test_loader_processes_that_are_spawned_run_frozen_code",
    "tests/elastic/test_frozen_code.py::test_import_path_entries_are_frozen",
    "tests/cli/test_stream.py::test_loader_processes",
    "tests/cli/test_stream.py::test_kill_9_anywhere",
    "tests/cli/test_stream.py::test_other_tails_have_exact_counts",
    "tests/cli/test_verify.py::test_explain_finds_a_difference_after_a_rescale",
    "tests/cli/test_verify.py::test_what_a_plan_did_not_come_to_is_said",
    "tests/cli/test_stream.py::test_everyone_is_killed_and_the_job_resumed",
    "tests/cli/test_mcmisp.py",
    "tests/cli/test_plan_under_fire.py",
    "tests/cli/test_porting.py::test_gpt",
    "tests/cli/test_porting.py::test_fine_tuning",
    "tests/cli/test_demo.py",
    "tests/cli/test_profile.py",
    "tests/cli/test_recipes_live.py",
    "tests/cli/test_recipes_proof.py::test_a_recipe_survives_two_deaths",
    "tests/cli/test_balanced.py",
    "tests/security/test_full_disk.py",
    "tests/unit/recipes/test_benchmarks.py::test_every_recipe_can_be_measured",
    "tests/security/test_two_coordinators.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also what takes minutes: more stories, the demo, full disks")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long") or any("::" in str(argument) for argument in config.args):
        return
    left_out = [item for item in items if item.nodeid.startswith(LONG)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.nodeid.startswith(LONG)]
