"""Every preset of a paper or a release, held to it: each value with where it stands there, or why it is ours.

Papers are cited by section and table, releases by the file of their repository. A preset that sets a key that its table
lacks fails, as does another value, in the preset or in what a run makes of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from lite_selfplay.config import RunConfig, merge, preset_layer, preset_names
from lite_selfplay.errors import ConfigError, UnknownNameError
from lite_selfplay.runs.defaults import filled_in

OF_A_MACHINE = {"cpu", "demo", "t4", "consumer-24gb", "datacenter-80gb"}
"""Presets that are cut to a machine and follow no paper."""

Values = Mapping[str, tuple[Any, str]]
"""A value and its place or reason, by its key; `*` stands for every role or seat."""


@dataclass(frozen=True)
class Held:
    """A preset's table: what its source has, and what is ours."""

    game: str
    source: Values
    ours: Values = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Any]:
        return {key: value for key, (value, _) in [*self.source.items(), *self.ours.items()]}


LARGE: Values = {
    "model.precision": ("bf16", "adapters over half-precision weights; the source trains all weights"),
    "model.gradient_checkpointing": (True, "for an 80 GB card"),
    "run.microbatch_tokens": (32768, "for an 80 GB card"),
}
ADAPTERS: Values = {"seats.*.lr": (3e-5, "for adapters, which hardly move at the rate for all weights")}

# Agon, "Agon: Competitive Cross-Model RL with Implicit Rival Grading of Reasoning"

AGON = Held(
    "agon",
    {
        "model.name": ("Qwen3-0.6B", "section 5, setup"),
        "run.group_size": (8, "section 5, setup: G = N = 8"),
        "seats.*.rank": (16, "section 5, setup"),
        "seats.*.lr": (5e-5, "section 5, setup"),
        "seats.*.schedule": ("linear", "section 5, setup"),
        "seats.*.warmup": (0.1, "section 5, setup"),
        "seats.A.init": ("zero", "section 4.2: A has the usual start of an adapter"),
        "seats.B.init": ("gaussian", "section 4.2: B starts with small Gaussian noise around zero"),
        "run.max_completion_tokens": (15000, "section 5, evaluation protocol: matched to training, 15k a stage"),
        "game.format_weight": (0.5, "section 5, setup: lambda"),
        "game.reward": ("adv", "section 4.4, equation 3"),
        "game.rotate": (True, "section 4.3: roles rotate every optimizer step"),
        "game.tiebreak": (0.0, "section 4.4: not part of the headline recipe"),
        "game.opponent": ("per_rollout", "section 4.3: one rollout per paired draft"),
        "tasks.answer_from": ("block", "section 5, evaluation protocol: parsed from the <answer> block"),
        "eval.samples": (1, "section 5, evaluation protocol: one rollout per stage"),
        "eval.temperature": (0.6, "section 5, evaluation protocol"),
        "eval.top_p": (0.95, "section 5, evaluation protocol"),
        "eval.limit": (300, "section 5, setup: a held-out set of 300 problems"),
        "model.thinking": ("on", "section 5, setup: the format reward is of <think> and <answer>"),
        "cold_start.enabled": (False, "section 4 has none"),
    },
    {
        **LARGE,
        "roles.*.beta": (
            0.0,
            "section 3 has the usual KL term towards the base and gives no weight: "
            "`--set 'roles.*.beta=0.001' --set 'roles.*.reference=base'` adds one",
        ),
        "roles.*.loss": (
            "grpo",
            "the paper is silent: a mean over each completion's tokens, then over completions. TRL's default weighs "
            "every token alike, which bears on lengths: `--set 'roles.*.loss=dapo'`",
        ),
        "run.steps": (750, "one epoch over 3,000 problems (section 5), four a step"),
        "run.problems_per_step": (4, "the paper is silent"),
        "run.save_every": (50, "the paper is silent"),
    },
)

# PasoDoble, "Better LLM Reasoning via Dual-Play"; the release is github.com/HCY123902/PasoDoble

ONLINE = "train_online_8_cards.sh"
PASODOBLE: Values = {
    "run.group_size": (6, "section 4 and table 11: K"),
    "game.proposals": (6, "section 4 and table 11: J"),
    "run.problems_per_step": (1, "algorithm 1: one piece of knowledge an iteration"),
    "game.mode": ("online", "section 3.5"),
    "game.seats": ("two", "section 3.1: two models from one base"),
    "game.knowledge": ("passages", "section 3.2"),
    "game.reward": ("difficulty", "section 3.3"),
    "game.diversity": (True, "section 3.3"),
    "game.freeze_proposer": (False, "section 3.5"),
    "game.eviction": (False, "appendix D: an experiment beside the main runs"),
    "game.min_pass_rate": (0.2, "section 4 and table 11"),
    "game.min_diversity": (0.3, "section 4 and table 11"),
    "game.diversity_weight": (0.2, "section 4 and table 11"),
    "game.history": (100, "table 11: size of history buffer"),
    "game.question_tokens": (512, "table 11: max prompt length of the solver"),
    "run.max_prompt_tokens": (1280, "table 11: max prompt length of the proposer"),
    "run.max_completion_tokens": (6144, "table 11, both models"),
    "roles.*.temperature": (0.6, "table 11, both models"),
    "roles.*.beta": (0.0, "table 11: KL coef, both models"),
    "seats.*.full_finetune_lr": (1e-6, "table 11, both models"),
    "tasks.passage_tokens": (1024, "section 4, knowledge base"),
    "model.name": ("Qwen3-1.7B-Base", "section 4, one of six; the one of the analyses"),
}

PASODOBLE_PAPER = Held(
    "pasodoble",
    {
        **PASODOBLE,
        "game.tau_sim": (0.3, "table 11"),
        "game.gate": ("valid", "section 3.5: an update where a question is valid, p = 1 included"),
        "game.proposer_steps": (10, "table 11, offline"),
        "game.solver_steps": (5, "table 11, offline"),
        "run.steps": (600, "table 11, online: max training steps; here skipped steps count, too"),
        "eval.samples": (6, "table 11, evaluation"),
        "eval.temperature": (0.6, "table 11, evaluation"),
        "eval.top_p": (0.95, "table 11, evaluation"),
        "seats.*.schedule": ("constant", "table 11 names one learning rate and no schedule"),
        "seats.*.warmup": (0.0, "table 11 names no warm-up"),
    },
    {
        **LARGE,
        **ADAPTERS,
        "game.leak_guard": ("token3", "the paper has no guard; without one a question may hold its answer"),
        "game.credit": ("group", "section 4 says GRPO; the release divides by the deviation"),
        "roles.*.loss": ("dr_grpo", f"section 4 says GRPO; {ONLINE}: LOSS_TYPE"),
    },
)
PASODOBLE_RELEASE = Held(
    "pasodoble",
    {
        "run.group_size": (6, f"{ONLINE}: SOLVER_NUM_GENERATIONS"),
        "game.proposals": (6, f"{ONLINE}: PROPOSER_NUM_GENERATIONS"),
        "run.problems_per_step": (1, "pasodoble_online.py samples one piece of knowledge a step"),
        "game.mode": ("online", ONLINE),
        "game.seats": ("two", f"{ONLINE}: two models"),
        "game.knowledge": ("passages", f"{ONLINE}: USE_KNOWLEDGE"),
        "game.min_pass_rate": (0.2, f"{ONLINE}: PASSING_RATE_LOWER_THRESHOLD"),
        "game.min_diversity": (0.3, "proposergrpo_trainer.py, _score_completions"),
        "game.diversity_weight": (0.2, "proposergrpo_trainer.py, _score_completions"),
        "game.tau_sim": (0.8, "jaccorbsimilarity.py: similarity_threshold"),
        "game.history": (100, "jaccorbsimilarity.py: maxlen"),
        "game.gate": ("pass_rate", "pasodoble_online.py, validate_passing_rate and validate_advantages"),
        "game.leak_guard": ("substring", "pasodoble_online.py, proposer_reward_hacking_check"),
        "game.credit": ("group", "TRL's scale_rewards is left as it is"),
        "game.question_tokens": (512, f"{ONLINE}: MAX_SOLVER_PROMPT_LENGTH"),
        "run.max_prompt_tokens": (1280, f"{ONLINE}: MAX_PROPOSER_PROMPT_LENGTH"),
        "run.max_completion_tokens": (6144, f"{ONLINE}: MAX_PROPOSER_ and MAX_SOLVER_COMPLETION_LENGTH"),
        "run.steps": (2000, f"{ONLINE}: MAX_STEPS, which counts skipped steps"),
        "run.save_every": (40, f"{ONLINE}: SAVE_STEPS"),
        "roles.*.temperature": (0.6, f"{ONLINE}: PROPOSER_ and SOLVER_TEMPERATURE"),
        "roles.*.beta": (0.0, f"{ONLINE}: BETA"),
        "roles.*.loss": ("dr_grpo", f"{ONLINE}: LOSS_TYPE"),
        "roles.*.clip_ratio": (0.2, "train_online.py leaves TRL's default"),
        "seats.*.full_finetune_lr": (1e-6, "configs/proposer_deepspeed_config_6_cards.json: warmup_max_lr"),
        "seats.*.schedule": (
            "constant",
            "the same: WarmupLR from 1e-6 to 1e-6, in the place of train_online.py's cosine",
        ),
        "seats.*.warmup": (0.0, "the same: warmup_num_steps"),
        "seats.*.clip": (1.0, "the same: gradient_clipping"),
        "seats.*.weight_decay": (0.0, "train_online.py leaves TRL's default"),
        "model.precision": ("bf16", "train_online.py; there all weights are trained"),
        "model.gradient_checkpointing": (True, "train_online.py"),
    },
    {
        "run.microbatch_tokens": LARGE["run.microbatch_tokens"],
        **ADAPTERS,
        "model.name": ("Qwen3-1.7B-Base", "the script leaves it open, for models of 1B and larger"),
        "tasks.passage_tokens": (1024, "the paper's; the release fetches passages that are filtered already"),
        "eval.samples": (6, "the paper's table 11; the release has no evaluation"),
        "eval.temperature": (0.6, "the paper's table 11; the release has no evaluation"),
        "eval.top_p": (0.95, "the paper's table 11; the release has no evaluation"),
    },
)

# SQLM, "Self-Questioning Language Models"; the release is github.com/lili-chen/self-questioning-lm

MINIBATCHES = (
    "32 prompts of 4 samples: 8 for the solver's 256 questions; the proposer's 64 prompts make 2 there, 8 here"
)
SQLM: Values = {
    "game.seats": ("shared", "section 4.2: in our experiments both share weights"),
    "game.reward": ("majority", "section 4.2, equation 1"),
    "game.questions": ("proposed", "section 5.5"),
    "game.proposer_every": (5, "table 4: proposer update frequency"),
    "model.name": ("Qwen2.5-3B-Instruct", "section 5.1"),
    "run.steps": (100, "appendix A.1"),
    "run.problems_per_step": (64, "table 4: batch size"),
    "run.group_size": (4, "table 4: number of samples per example n"),
    "run.max_prompt_tokens": (512, "table 4: max prompt length"),
    "run.minibatches": (8, f"table 4: policy mini batch size, in verl's terms ({MINIBATCHES})"),
    "roles.*.temperature": (1.0, "table 4"),
    "roles.*.beta": (1e-3, "table 4: KL loss coefficient"),
    "roles.*.clip_ratio": (0.2, "table 4"),
    "seats.*.full_finetune_lr": (1e-6, "table 4"),
    "seats.*.schedule": ("constant", "table 4: learning rate warmup"),
    "seats.*.warmup": (0.0, "table 4: learning rate warmup"),
    "seats.*.clip": (1.0, "table 4: grad clip"),
    "seats.*.weight_decay": (0.01, "table 4"),
}
SQLM_PAPER_OURS: Values = {
    **LARGE,
    **ADAPTERS,
    "roles.*.entropy": (0.0, "the paper names no entropy term; grpo.yaml has 0"),
    "roles.*.loss": ("dapo", "the paper is silent; ppo_trainer.yaml: loss_agg_mode token-mean"),
    "eval.samples": (1, "the paper is silent; ppo_trainer.yaml: val_kwargs.n"),
    "eval.temperature": (0.0, "the paper is silent; ppo_trainer.yaml: val_kwargs, greedy"),
    "eval.top_p": (1.0, "the paper is silent; ppo_trainer.yaml: val_kwargs"),
    "eval.every": (25, "the paper reports the best of its 100 steps; more often takes longer than training"),
    "run.save_every": (25, "the paper is silent"),
}
ARITHMETIC: Values = {
    "game.topic": ("arithmetic", "section 5.1"),
    "run.max_completion_tokens": (1024, "table 4, arithmetic"),
    "eval.tasks": ("multiplication", "section 5.1: three-digit multiplication, as TinyZero draws it"),
    "eval.limit": (4096, "section 5.1"),
}
ALGEBRA: Values = {
    "game.topic": ("algebra", "section 5.1"),
    "run.max_completion_tokens": (3072, "table 4, algebra"),
    "eval.limit": (100, "section 5.1: OMEGA's linear equations, which are to be named"),
    "eval.tasks": (None, "section 5.1: OMEGA's linear equations, which are to be named"),
}
CODE: Values = {
    "game.topic": ("code", "section 5.1"),
    "model.name": ("Qwen/Qwen2.5-Coder-3B-Instruct", "section 5.1"),
    "run.max_completion_tokens": (512, "table 4, coding"),
    "eval.limit": (123, "section 5.1: the Codeforces problems of Eurus-2, which are to be named"),
    "eval.tasks": (None, "section 5.1: the Codeforces problems of Eurus-2, which are to be named"),
}
TRAINER, GRPO = "verl/trainer/config/ppo_trainer.yaml", "exps/grpo.yaml"
SQLM_RELEASE: Values = {
    "game.seats": ("shared", f"{TRAINER}: one actor"),
    "game.reward": ("majority", "exps/majority.yaml"),
    "game.questions": ("proposed", f"{TRAINER}: self_play"),
    "game.proposer_every": (5, f"{TRAINER}: self_play_proposer_update_freq"),
    "run.problems_per_step": (64, "exps/smallbs.yaml: train_batch_size"),
    "run.max_prompt_tokens": (512, "max_prompt_length"),
    "run.minibatches": (8, f"exps/smallbs.yaml: ppo_mini_batch_size ({MINIBATCHES})"),
    "roles.*.temperature": (1.0, f"{TRAINER}: rollout.temperature"),
    "roles.*.beta": (1e-3, f"{GRPO}: kl_loss_coef"),
    "roles.*.clip_ratio": (0.2, f"{TRAINER}: clip_ratio"),
    "roles.*.entropy": (0.0, f"{GRPO}: entropy_coeff"),
    "roles.*.loss": ("dapo", f"{TRAINER}: loss_agg_mode token-mean"),
    "seats.*.full_finetune_lr": (1e-6, f"{GRPO}: optim.lr"),
    "seats.*.schedule": ("constant", f"{TRAINER}: warmup_style"),
    "seats.*.warmup": (0.0, f"{TRAINER}: lr_warmup_steps_ratio"),
    "seats.*.clip": (1.0, f"{TRAINER}: grad_clip"),
    "seats.*.weight_decay": (0.01, f"{TRAINER}: optim.weight_decay"),
    "eval.samples": (1, f"{TRAINER}: val_kwargs.n"),
    "eval.temperature": (0.0, f"{TRAINER}: val_kwargs, do_sample false"),
    "eval.top_p": (1.0, f"{TRAINER}: val_kwargs.top_p"),
    "eval.every": (5, f"{GRPO}: test_freq"),
    "model.gradient_checkpointing": (True, f"{GRPO}: enable_gradient_checkpointing"),
}
SQLM_RELEASE_OURS: Values = {
    **{key: value for key, value in LARGE.items() if key != "model.gradient_checkpointing"},
    **ADAPTERS,
    "run.steps": (100, "the paper's appendix A.1; the release goes on for 1,000 epochs"),
    "run.save_every": (25, "the release saves nothing"),
}


def sqlm_release(script: str, topic: str, tokens: int, evaluated: Values) -> Held:
    of_the_script: Values = {
        "game.topic": (topic, f"{script}: train_files"),
        "run.max_completion_tokens": (tokens, f"{script}: max_response_length"),
        "run.group_size": (4, f"{script}: rollout.n"),
        "model.name": ("Qwen2.5-3B-Instruct", script),
    }
    return Held("sqlm", {**SQLM_RELEASE, **of_the_script, **evaluated}, SQLM_RELEASE_OURS)


# CPMobius, "CPMöbius: Iterative Coach-Player Reasoning for Data-Free Reinforcement Learning"; the release is
# github.com/thunlp/CPMobius

CPMOBIUS_PAPER = Held(
    "cpmobius",
    {
        "model.name": ("Qwen2.5-Math-1.5B", "section 4.1, the player; the paper's coach is another model"),
        "run.steps": (2000, "appendix A.4: 1,000 steps of each, a round being two here"),
        "run.problems_per_step": (16, "section 4.1 and appendix A.4: batch size"),
        "run.group_size": (16, "section 4.1 and appendix A.4.2: number of rollout"),
        "run.max_completion_tokens": (2048, "appendix A.4.2, Qwen2.5-Math-1.5B: response length"),
        "game.filter": (True, "section 3.1, difficulty-filtered batching"),
        "game.low": (0.2, "section 3.1"),
        "game.high": (0.8, "section 3.1"),
        "game.resample": (True, "algorithm 1, lines 14 and 15"),
        "game.reward": ("zero_one", "section 3.2, equation 7"),
        "game.coach_reward": ("mean", "section 3.1, equation 5"),
        "game.freeze_coach": (False, "section 3, step 4"),
        "game.rollback": (0, "algorithm 1 has none"),
        "roles.coach.temperature": (0.7, "appendix A.4.1"),
        "roles.coach.beta": (1e-3, "appendix A.4.1"),
        "roles.coach.entropy": (0.01, "appendix A.4.1"),
        "roles.coach.loss": ("sequence", "section 3.1, equation 6: log-probabilities of whole tasks, a mean over them"),
        "roles.player.temperature": (0.6, "appendix A.4.2, Qwen2.5-Math-1.5B"),
        "roles.player.beta": (1e-3, "appendix A.4.2, Qwen2.5-Math-1.5B"),
        "roles.player.entropy": (-0.01, "appendix A.4.2, Qwen2.5-Math-1.5B"),
        "roles.player.loss": ("sequence", "section 2.1, equation 2: the ratio of whole answers"),
        "seats.*.full_finetune_lr": (1e-6, "appendix A.4"),
        "cold_start.roles": (["coach"], "section 4.1: the coach is cold-started"),
        "eval.temperature": (0.6, "section 4.1: as in training"),
        "eval.top_p": (1.0, "section 4.1: as in training"),
    },
    {
        **LARGE,
        **ADAPTERS,
        "run.microbatch_tokens": (16384, "for an 80 GB card"),
        "seats.*.schedule": ("constant", "the paper names one learning rate and no schedule"),
        "seats.*.warmup": (0.0, "the paper names no warm-up"),
        "game.validation_samples": (10, "silent for training; section 4.1 measures AMC by mean@10"),
    },
)
SCRIPT = "scripts/run_qwen2.5_math_1.5b.sh"
CPMOBIUS_RELEASE = Held(
    "cpmobius",
    {
        "model.name": ("Qwen2.5-Math-1.5B", f"{SCRIPT}, the player; its coach is another model"),
        "run.steps": (2000, f"{SCRIPT}: total_epochs 1000, a round being two steps here"),
        "run.problems_per_step": (16, f"{SCRIPT}: tbs"),
        "run.group_size": (16, f"{SCRIPT}: n"),
        "run.max_prompt_tokens": (1024, f"{SCRIPT}: prompt_length"),
        "run.max_completion_tokens": (2048, f"{SCRIPT}: response_length"),
        "run.minibatches": (1, f"{SCRIPT}: mbs 256, no fewer than a step has"),
        "run.save_every": (20, f"{SCRIPT}: save_freq 10"),
        "game.filter": (True, SCRIPT),
        "game.low": (0.2, f"{SCRIPT}: filter_lower_bound"),
        "game.high": (0.8, f"{SCRIPT}: filter_upper_bound"),
        "game.resample": (False, "verl/trainer/ppo/ray_trainer.py, RayCPTrainer.fit"),
        "game.reward": ("signed", "verl/trainer/main_ppo.py, _MajorityVote_compute_score"),
        "game.coach_reward": ("delta", f"{SCRIPT}: val_reward, without proposer_multiply_train_reward"),
        "game.validation_samples": (10, f"{SCRIPT}: amc_x10.parquet"),
        "game.rollback": (15, f"{SCRIPT}: save_load_interval"),
        "game.rollback_from": (100, f"{SCRIPT}: save_load_begin_steps"),
        "roles.coach.temperature": (0.9, f"{SCRIPT}: pt"),
        "roles.coach.beta": (1e-3, f"{SCRIPT}: kl"),
        "roles.coach.entropy": (0.01, f"{SCRIPT}: proposer_entropy_coeff"),
        "roles.coach.loss": ("dapo", "verl/workers/actor/dp_actor.py: means over the tokens of a microbatch"),
        "roles.player.temperature": (0.6, f"{SCRIPT}: t"),
        "roles.player.beta": (1e-3, f"{SCRIPT}: kl"),
        "roles.player.entropy": (-0.01, f"{SCRIPT}: entropy_coeff"),
        "roles.player.loss": ("dapo", "verl/workers/actor/dp_actor.py: means over the tokens of a microbatch"),
        "roles.player.clip_ratio": (0.2, "verl/trainer/config/ppo_trainer.yaml"),
        "seats.*.full_finetune_lr": (1e-6, f"{SCRIPT}: optim.lr"),
        "seats.*.schedule": ("constant", "verl/workers/fsdp_workers.py"),
        "seats.*.warmup": (0.0, "verl/trainer/config/ppo_trainer.yaml: lr_warmup_steps_ratio"),
        "seats.*.clip": (1.0, "verl/trainer/config/ppo_trainer.yaml: grad_clip"),
        "seats.*.weight_decay": (0.01, "verl/workers/fsdp_workers.py"),
        "eval.temperature": (0.6, f"{SCRIPT}: t, with val_do_sample"),
        "eval.top_p": (1.0, f"{SCRIPT}: topp, with val_do_sample"),
        "model.gradient_checkpointing": (True, SCRIPT),
    },
    {
        **{key: value for key, value in LARGE.items() if key != "model.gradient_checkpointing"},
        **ADAPTERS,
        "run.microbatch_tokens": (16384, "for an 80 GB card"),
        "cold_start.roles": (["coach"], "the paper's section 4.1; the script takes a coach that has been taught"),
    },
)

# R-Zero, as the baseline of CPMobius's section 4.1. Its own paper was not at hand; its scripts were.

RZERO = Held(
    "rzero",
    {
        "game.challenger_steps": (5, "scripts/questioner_train_penalty.sh takes the checkpoint of step 5"),
        "game.solver_steps": (15, "scripts/solver_train.sh takes the checkpoint of step 15"),
        "game.low": (0.3, "scripts/solver_train.sh: min_score"),
        "game.high": (0.8, "scripts/solver_train.sh: max_score"),
        "game.votes": (10, "question_evaluate/evaluate.py: num_samples"),
        "game.cluster_distance": (0.5, "examples/reward_function/caller_penalty.py: distance_threshold"),
        "game.similarity": (True, "examples/reward_function/caller_penalty.py"),
        "roles.*.temperature": (1.0, "examples/config.yaml"),
        "roles.*.beta": (1e-2, "examples/config.yaml: kl_coef"),
        "seats.*.full_finetune_lr": (1e-6, "examples/config.yaml"),
        "seats.*.warmup": (0.0, "examples/config.yaml: lr_warmup_ratio"),
        "seats.*.weight_decay": (0.01, "examples/config.yaml"),
        "run.steps": (60, "three iterations of 5 and 15 (CPMobius, table 1: iteration 3)"),
        "model.name": ("Qwen2.5-Math-1.5B", "CPMobius, section 4.1"),
    },
    {
        **LARGE,
        **ADAPTERS,
        "run.microbatch_tokens": (16384, "for an 80 GB card"),
        "seats.*.schedule": ("constant", "examples/config.yaml names none"),
        "run.group_size": (8, "the scripts have 4 for the challenger and 5 for the solver"),
        "run.problems_per_step": (16, "for one card; the scripts have 512 rollouts a step"),
        "run.max_completion_tokens": (
            2048,
            "CPMobius's for this base, which reads 4,096 tokens in all; the scripts: 4,096",
        ),
    },
)

# SPC, "SPC: Evolving Self-Play Critic via Adversarial Games for LLM Reasoning"; its code is github.com/chen-judge/SPC

RL_CRITIC, INFER = "scripts/rl_critic.sh", "eval/infer_batch.py"
SPC: Values = {
    "model.name": ("Qwen2.5-7B-Instruct", "section 3.2"),
    "game.rounds": (2, "section 1: two rounds of iterative reinforcement fine-tuning after one of supervised"),
    "game.stable": (0.75, "section 3.2: a success rate greater than or equal to 75%"),
    "game.critiques": (4, "section 4.3: the critic predicts four critiques"),
    "game.schedule": ("asymmetric", "section 3.5 and 4.3, strategy 2"),
    "game.pairing": (True, "section 4.3: pairs with the same input"),
    "game.solver_reward": (True, "section 3.5: steps that fail to affect the success rate are negative samples"),
    "cold_start.enabled": (
        True,
        "section 3.2 and 3.3: supervised fine-tuning first; here by rule or from `game.pairs`",
    ),
    "eval.temperature": (0.0, f"{INFER}: SamplingParams"),
    "run.max_completion_tokens": (2048, f"{INFER}: SamplingParams"),
    "seats.*.full_finetune_lr": (2e-6, f"{RL_CRITIC}: LEARNING_RATE"),
    "game.epochs": (3, f"{RL_CRITIC}: num_train_epochs; the paper is silent"),
    "game.batch": (64, f"{RL_CRITIC}: TOTAL_BATCH_SIZE; the paper is silent"),
}
SPC_OURS: Values = {
    **LARGE,
    **ADAPTERS,
    "run.microbatch_tokens": (16384, "for an 80 GB card and a base of 7B"),
    "game.solvers": (["base"], "section 3.4 names solvers of several families, 7B to 32B: bring theirs by --solutions"),
    "game.samples": (1, "the paper is silent"),
    "game.rollouts": (4, "section 3.2 says N times and no number"),
    "game.tournament": (True, "figure 3: snapshots that did not play against each other are compared as well"),
    "roles.*.temperature": (1.0, "the paper is silent"),
    "roles.sneaky.clip_ratio": (0.2, "equation 4 has no clip; without one a whole answer's ratio has no bound"),
    "roles.critic.clip_ratio": (0.2, "equation 4 has no clip; without one a whole answer's ratio has no bound"),
    "seats.*.schedule": ("constant", f"how much there is to learn is not known ahead; {RL_CRITIC} leaves the default"),
    "seats.*.warmup": (0.0, f"for the same reason; {RL_CRITIC} has 10 steps"),
    "eval.top_p": (1.0, "greedy"),
    "run.steps": (1_000_000, "the game ends by itself"),
    "run.group_size": (8, "plays no part: the game's own switches say how many completions"),
    "run.problems_per_step": (2000, "the paper does not say how many problems a round has"),
    "run.max_prompt_tokens": (2048, f"with the completion the 4,096 of {RL_CRITIC}: MODEL_MAX_LENGTH"),
}
SPC_PAPER = Held(
    "spc",
    {
        **SPC,
        "roles.sneaky.kl": ("advantage", "section 3.5: A = R - b - beta KL"),
        "roles.critic.kl": ("advantage", "section 3.5: A = R - b - beta KL"),
        "roles.sneaky.beta": (0.1, f"{RL_CRITIC}: lm_kl_coeff; the paper gives no value"),
        "roles.critic.beta": (0.1, f"{RL_CRITIC}: lm_kl_coeff; the paper gives no value"),
        "roles.sneaky.loss": ("sequence", "equation 4: the ratio of the whole answer"),
        "roles.critic.loss": ("sequence", "equation 4: the ratio of the whole answer"),
    },
    {**SPC_OURS, "game.sft_weight": (0.0, "the paper's objective, equation 4, has no supervised term")},
)
SPC_RELEASE = Held(
    "spc",
    {
        **SPC,
        "game.sft_weight": (0.15, f"{RL_CRITIC}: lm_sft_coeff"),
        "roles.sneaky.beta": (0.0, "its trainer leaves the KL term of lm_kl_coeff out"),
        "roles.critic.beta": (0.0, "its trainer leaves the KL term of lm_kl_coeff out"),
        "roles.sneaky.ratio": ("sequence", "its trainer: exp of the mean log-ratio of a completion's tokens"),
        "roles.critic.ratio": ("sequence", "its trainer: exp of the mean log-ratio of a completion's tokens"),
        "roles.sneaky.loss": ("grpo", "its trainer: a mean over completions"),
        "roles.critic.loss": ("grpo", "its trainer: a mean over completions"),
    },
    SPC_OURS,
)

HELD: dict[str, Held] = {
    "agon-paper": AGON,
    "pasodoble-paper": PASODOBLE_PAPER,
    "pasodoble-release": PASODOBLE_RELEASE,
    "sqlm-paper": Held("sqlm", {**SQLM, **ARITHMETIC}, SQLM_PAPER_OURS),
    "sqlm-paper-algebra": Held("sqlm", {**SQLM, **ALGEBRA}, SQLM_PAPER_OURS),
    "sqlm-paper-code": Held("sqlm", {**SQLM, **CODE}, SQLM_PAPER_OURS),
    "sqlm-release": sqlm_release(
        "exps/multiply_selfplay.yaml",
        "arithmetic",
        1024,
        {
            "eval.tasks": ("multiplication", "exps/multiply_selfplay.yaml: multiply-3_digit"),
            "eval.limit": (4096, "the paper's section 5.1"),
        },
    ),
    "sqlm-release-algebra": sqlm_release(
        "exps/linear_equations_selfplay.yaml",
        "algebra",
        3072,
        {
            "eval.tasks": (
                None,
                "exps/linear_equations_selfplay.yaml: OMEGA's linear equations, which are to be named",
            ),
            "eval.limit": (100, "the paper's section 5.1"),
        },
    ),
    "cpmobius-paper": CPMOBIUS_PAPER,
    "cpmobius-release": CPMOBIUS_RELEASE,
    "rzero-paper": RZERO,
    "spc-paper": SPC_PAPER,
    "spc-release": SPC_RELEASE,
}


def settings(layer: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of a layer, dotted, with their values."""
    for key, value in layer.items():
        if isinstance(value, Mapping):
            yield from settings(value, f"{prefix}{key}.")
        elif f"{prefix}{key}" != "game.name":
            yield f"{prefix}{key}", value


def resolved(layer: Mapping[str, Any], game: str) -> dict[str, Any]:
    """What a run makes of a preset, as `settings` tells it, with the game's switches."""
    config, played = filled_in(RunConfig(**merge({"game": {"name": game}}, layer)))
    whole = config.model_dump(mode="json") | {"game": played.options.model_dump(mode="json")}
    return dict(settings(whole))


def complaints(layer: Mapping[str, Any], held: Held) -> list[str]:
    """Where a preset, or what a run makes of it, is not what its table says."""
    table, found = held.values, []
    for key, value in settings(layer):
        if key == "run.preset":  # its own name
            continue
        if key not in table:
            found.append(f"{key} is not in the table")
        elif value != table[key]:
            found.append(f"{key} is {value!r}, in the table {table[key]!r}")
    run = resolved(layer, held.game)
    for key, value in table.items():
        section, _, rest = key.partition(".*.")
        places = [k for k in run if k == key or (rest and k.startswith(f"{section}.") and k.endswith(f".{rest}"))]
        if not places:
            found.append(f"{key} is no key of a run")
        found += [
            f"{place} is {run[place]!r} in a run, in the table {value!r}" for place in places if run[place] != value
        ]
    return found


@pytest.mark.parametrize("name", HELD)
def test_a_preset_is_what_its_source_says(name: str):
    assert complaints(preset_layer(name), HELD[name]) == []


def test_every_preset_has_a_table_or_is_of_a_machine():
    assert set(preset_names()) == HELD.keys() | OF_A_MACHINE
    assert not HELD.keys() & OF_A_MACHINE


@pytest.mark.parametrize("name", HELD)
def test_each_row_says_where_its_value_stands_or_why_it_is_ours(name: str):
    held = HELD[name]
    assert all(where.strip() for _, where in [*held.source.values(), *held.ours.values()])
    assert not held.source.keys() & held.ours.keys()
    # At the least what every paper's own table of hyperparameters holds.
    told = {*held.source, *held.ours}
    assert {"run.steps", "run.group_size", "run.max_completion_tokens", "model.name", "seats.*.lr"} <= told


def test_the_check_sees_a_key_too_many_another_value_and_what_a_recipe_would_change():
    layer, held = preset_layer("cpmobius-release"), HELD["cpmobius-release"]
    assert complaints(merge(layer, {"run": {"seed": 3}}), held) == ["run.seed is not in the table"]
    other = complaints(merge(layer, {"game": {"rollback": 16}}), held)
    assert other == [
        "game.rollback is 16, in the table 15",
        "game.rollback is 16 in a run, in the table 15",
    ]
    # Not in the preset at all, and another value in the run.
    changed = Held("agon", {**AGON.source, "seats.B.init": ("zero", "a recipe's")}, AGON.ours)
    assert complaints(preset_layer("agon-paper"), changed) == [
        "seats.B.init is 'gaussian' in a run, in the table 'zero'"
    ]
    gone = Held("agon", {**AGON.source, "game.nothing": (1, "nowhere")}, AGON.ours)
    assert complaints(preset_layer("agon-paper"), gone) == ["game.nothing is no key of a run"]
    one_seat = merge(layer, {"seats": {"coach": {"lr": 1e-4}}})
    assert "seats.coach.lr is 0.0001 in a run, in the table 3e-05" in complaints(one_seat, held)


def test_a_preset_of_one_game_is_refused_over_another():
    of_games = {name: held.game for name, held in HELD.items()}
    assert {name: preset_layer(name)["game"]["name"] for name in HELD} == of_games
    asked: list[dict[str, Any]] = [
        {"preset": "agon-paper", "game": "sqlm"},
        {**preset_layer("spc-paper"), "game": "grpo"},
    ]
    for values, sentence in zip(
        asked, ("agon-paper is of agon, not of sqlm", "spc-paper is of spc, not of grpo"), strict=True
    ):
        with pytest.raises(ConfigError, match=sentence):
            RunConfig(**values)
    for name in OF_A_MACHINE:
        assert RunConfig(preset=name, game="rent", tasks="letters").run.preset == name
    with pytest.raises(UnknownNameError) as caught:
        RunConfig(preset="paper", game="agon")
    assert all(name in str(caught.value) for name in preset_names())
