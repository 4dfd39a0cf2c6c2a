import inspect
import json
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from training.fake_learner import use_fake_learner

from jaxmarl_llm.cli import main, one_line
from jaxmarl_llm.cli.train import parse_train
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training import loop
from jaxmarl_llm.training.config import Algorithm, TrainConfig, load_preset


@pytest.fixture
def fake_learner(monkeypatch):
    return use_fake_learner(monkeypatch)


@pytest.fixture
def small_run(tmp_path):
    """Arguments of a run of ten updates."""
    return [
        *(
            "train",
            "ippo_matrix_game",
            "--env-args",
            "game=coordination",
            "max_steps=3",
            "--out",
            str(tmp_path / "run"),
        ),
        *("--num-envs", "4", "--rollout-length", "5", "--total-steps", "200", "--eval-episodes", "6"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trian", "unknown command 'trian': did you mean train?"),
        ("train dmo", "did you mean demo?"),
        ("train iql", "'iql' is an algorithm: choose one of its presets"),
        ("train --num-envs 64 dmo", "did you mean demo?"),
        ("train --num-envs 64 demo ippo_foraging", "train takes one preset, got demo and ippo_foraging"),
        ("train demo --gru-size 8", "--gru-size is for --network gru, the network is mlp"),
        ("train demo --network coordinator --activation tanh", "--activation is for --network mlp or cnn or gru"),
        ("envs overcookd", "did you mean overcooked?"),
        ("presets demoo", "did you mean demo?"),
        ("train", "name a preset"),
        ("train nowhere.yaml", "cannot read nowhere.yaml"),
        ("train demo --num-env 3", "did you mean --num-envs"),
        ("train demo --no-resum", "did you mean --resume"),
        ("train demo --num-envs x", "--num-envs: expected a whole number such as 500000 or 5e5, got 'x'"),
        ("train demo --num-envs=1.5", "--num-envs: expected a whole number"),
        ("train demo --hidden-sizes 8 1.5", "--hidden-sizes: expected a whole number"),
        ("train demo --hidden-sizes", "--hidden-sizes needs a value"),
        ("train demo --num-envs 1e30", "num_envs must be at most 2147483647"),
        ("train demo --network coordinater", "unknown network 'coordinater': did you mean coordinator?"),
        ("train demo --activation gelu", "unknown activation 'gelu': did you mean relu?"),
        ("train demo --sharing sharde", "unknown sharing 'sharde': did you mean shared?"),
        ("train demo --sharing 0 x", "unknown sharing 'x': choose one of isolated, shared"),
        ("train ippo_matrix_game --algorithm hatrpo --num-devices 2 --out {folder}/run", "update on one device"),
        ("bench --env", "--env needs a value"),
        ("bench --modes --num-envs 1", "--modes needs a value"),
        ("bench --json {folder}", "--json cannot be written to"),
        ("bench --json {folder}/nowhere/x.json", "--json cannot be written to"),
        ("train demo --num-envs 0", "num_envs must be at least 1"),
        ("train demo --algorithm ipo", "unknown algorithm 'ipo': did you mean ippo"),
        ("train demo --env-args layout", "expected name=value, got 'layout'"),
        ("train demo --total-steps 1.5", "expected a whole number"),
        ("train demo extra", "extra"),
        ("train demo --resume", "add --out DIR"),
        ("train --resume --out {folder}/nowhere", "no run to resume in"),
        ("train --env overcookd --out {folder}/run", "did you mean overcooked?"),
        ("train --env matrix_game --env-args gamee=3 --out {folder}/run", "did you mean game?"),
        ("train ippo_matrix_game --num-minibatches 7 --out {folder}/run", "num_minibatches=7 does not divide"),
        ("train ippo_matrix_game --num-devices 3 --out {folder}/run", "JAX sees 2"),
        ("train ippo_matrix_game --num-devices 2 --num-envs 5 --out {folder}/run", "or a multiple of 2 for --num-envs"),
        ("eval {folder}/nowhere", "no run in"),
        ("eval {folder} --seed -1", "--seed must lie between 0 and"),
        ("eval", "Folder of the run"),
        ("render {folder}/nowhere", "no run in"),
        ("render {folder} --out {folder}/picture.txt", "ends in .gif"),
        ("train demo --env-args max_steps=2.5 --out {folder}/run", "must be a whole number, got 2.5"),
        ("train demo --learning-rate inf --out {folder}/run", "learning_rate must be finite"),
        ("bench --num-envs 0", "num_envs must be at least 1"),
    ],
)
def test_mistakes_take_one_line_and_status_2(arguments, message, tmp_path, capsys):
    assert main(arguments.format(folder=tmp_path).split()) == 2
    shown, error = capsys.readouterr()
    assert error.count("\n") == 1 and error.startswith("error: ") and message in error and not shown
    assert not list(tmp_path.iterdir())


ENVIRONMENT = """
import dataclasses, flax, jax, jax.numpy as jnp
from jaxmarl_llm import Environment, EnvState
from jaxmarl_llm.envs import Box, Discrete

@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain(Environment):
    num_agents = property(lambda self: 2)
    observation_space = property(lambda self: Box(0, 1, (3,)))
    action_space = property(lambda self: Discrete(5))
    def initial_state(self, key): return EnvState(step=jnp.int32(0))
    def transition(self, key, state, action): return state, jnp.float32(1), False, {}
    def observe(self, state): return jnp.ones((2, 3))

class Boom(Plain):
    def transition(self, key, state, action):
        raise RuntimeError("two\\nlines")  # line 17

class Exits(Plain):
    def observe(self, state): raise SystemExit(7)

class NoAgentAxis(Plain):
    def observe(self, state): return jnp.ones(3)

class NanStart(Plain):
    def observe(self, state): return jnp.ones((2, 3)) * jnp.nan

class NothingLegal(Plain):
    def action_mask(self, state): return jnp.zeros((2, 5), bool)

class Nobody(Plain):
    num_agents = property(lambda self: 0)

class Halves(Plain):
    num_agents = property(lambda self: 2.0)

class BoxActions(Plain):
    action_space = property(lambda self: Box(0, 1, (2,)))

class Unlicensed(Plain):
    def __init__(self): raise KeyError("licence")

class Lost(Plain):
    num_agents = property(lambda self: open("/nonexistent/number"))

three = 3
"""


@pytest.mark.parametrize("command", ["train", "bench"])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "mine:Boom",
            "transition: fails under jax.jit (RuntimeError: two lines (mine.py:17)): let it return arrays",
        ),
        ("mine:Exits", "SystemExit: 7 (mine.py:20)"),
        ("mine:NoAgentAxis", "observation_space asks for float32[2, 3], agent axis first"),
        ("mine:NanStart", "timestep.observation: NaN or infinite"),
        ("mine:NothingLegal", "agent_0 has no legal action"),
        ("mine:Nobody", "num_agents: 0: return an int of at least 1"),
        ("mine:Halves", "num_agents: 2.0: return an int"),
        ("mine:BoxActions", "return Discrete(A)"),
        ("mine:Unlicensed", "refuses its settings {}: KeyError: 'licence' (mine.py:"),
        ("mine:Lost", "FileNotFoundError: "),
        ("mine:three", "environment mine:three is 3: name a class"),
        ("mine:Plian", "did you mean Plain?"),
        ("mine:EnvState", "refuses its settings {}: TypeError: "),
        ("broken:Plain", "SyntaxError: '(' was never closed (broken.py:2)"),
        ("raises:Plain", "ModuleNotFoundError: No module named 'nothing_such' (raises.py:3)"),
        ("leaves:Plain", "cannot import environment 'leaves:Plain': SystemExit: 3 (leaves.py:1)"),
        ("nowhere:Plain", "cannot import environment 'nowhere:Plain': ModuleNotFoundError"),
        *(
            (path, "is no import path")
            for path in (":", ":Plain", "mine:", "../mine:Plain", "mine:Plain:x", "./m.py:P")
        ),
    ],
)
def test_faults_of_a_users_environment_take_one_line(command, path, message, tmp_path, capsys, monkeypatch):
    modules = {
        "mine": ENVIRONMENT,
        "broken": "\nf(",
        "raises": "def f():\n    return 1\nimport nothing_such",
        "leaves": "raise SystemExit(3)",
    }
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    options = {"train": ["--out", "run"], "bench": ["--num-envs", "1"]}[command]
    assert main([command, "--env", path, *options]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("error: ") and message in error
    assert not (tmp_path / "run").exists()


def test_a_traceback_is_shown_on_demand(tmp_path, capsys, monkeypatch):
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("JAXMARL_LLM_TRACEBACK", "1")
    assert main(["train", "--env", "leaving:Plain"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_what_is_too_large_takes_one_line_and_faults_of_ours_keep_their_traceback():
    for command, advice in (
        ("train", ", such as --num-envs ("),
        ("ablate", ", such as --num-problems or"),
        ("chat", " ("),
    ):
        line = str(one_line(MemoryError("12 GiB"), command))
        assert line.startswith(f"out of memory: choose smaller settings{advice}")
    assert "RESOURCE_EXHAUSTED" in str(one_line(RuntimeError("RESOURCE_EXHAUSTED: 12 GiB")))
    assert "too large a number" in str(one_line(OverflowError("int")))
    assert one_line(RuntimeError("a fault of ours")) is None


def test_options_override_the_preset_and_settings_add_to_its_own():
    options, name = parse_train(["ippo_overcooked_coord_ring", "--env-args", "max_steps=50", "--learning-rate", "1"])
    assert options.config.env_args == load_preset("ippo_overcooked_coord_ring").env_args | {"max_steps": 50}
    assert options.config.learning_rate == 1.0 and name == "ippo_overcooked_coord_ring"
    assert options.config.out.startswith("runs/ippo_overcooked_coord_ring-")
    # Another environment does not want the settings of the preset's.
    options, _ = parse_train(["ippo_overcooked_coord_ring", "--env", "matrix_game"])
    assert options.config.env_args == {}
    options, name = parse_train(["--env", "my.module:Env", "--sharing", "0", "0", "1", "--no-normalize-advantage"])
    assert options.config.sharing == (0, 0, 1) and not options.config.normalize_advantage and name == "Env"


@pytest.mark.parametrize(
    "options",
    ["--num-envs 8", "--num-envs=8", "--env-args max_steps=9", "--hidden-sizes 8 9", "--sharing shared", "--no-plots",
     "--eval-every -1", "--normalize_value True", "--resume"],
)  # fmt: skip
def test_a_preset_may_follow_the_options(options):
    given = ["--out", "x", *options.split()]  # the name of the folder holds the time
    assert parse_train([*given, "demo"]) == parse_train(["demo", *given])


def test_settings_of_the_presets_network_do_not_follow_to_another(tmp_path):
    (tmp_path / "mine.yaml").write_text("env: matrix_game\nnetwork: gru\ngru_size: 8\n")
    options, _ = parse_train([str(tmp_path / "mine.yaml")])
    assert options.config.gru_size == 8
    options, _ = parse_train([str(tmp_path / "mine.yaml"), "--network", "mlp"])
    assert options.config.gru_size == TrainConfig().gru_size


COMMANDS = ["train", "eval", "render", "envs", "presets", "bench", "finetune", "evaluate", "chat", "export"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_for_newcomers(command, capsys):
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert left.value.code == 0 and f"usage: jaxmarl-llm {command}" in shown
    for word in ("None", "STR", "INT", "FLOAT", "default: )", "{", "[N ", "COUNT"):
        assert word not in shown, word


def test_every_setting_is_described(capsys):
    from jaxmarl_llm.cli.listing import _meanings
    from jaxmarl_llm.envs.registry import environment_factory, environment_names
    from jaxmarl_llm.training.build import algorithm_settings

    for name in environment_names():
        fields = set(inspect.signature(environment_factory(name)).parameters) - {"max_steps"}
        assert fields <= set(_meanings(inspect.getmro(environment_factory(name)))), name  # pyright: ignore[reportArgumentType]
    for algorithm in typing.get_args(Algorithm):
        values, sources = algorithm_settings(TrainConfig(algorithm=algorithm, env="two_step"))
        assert set(values) <= set(_meanings(sources)), algorithm
        central = None if algorithm in ("iql", "vdn", "qmix", "weighted_qmix") else "global_state"
        assert values.get("critic") == {"coma": "action", "ippo": "observation"}.get(algorithm, central), algorithm
    assert main(["envs", "overcooked"]) == 0
    assert "delivery_reward  20.0" in capsys.readouterr().out
    assert main(["presets", "qmix_two_step"]) == 0
    shown = capsys.readouterr().out
    assert "rollout_length: 128 -> 3" in shown and "target_update_interval    100" in shown


def test_ctrl_c_before_the_first_update_takes_one_line(small_run, fake_learner, tmp_path, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "compile_program", interrupted)
    assert main(small_run) == 130
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "nothing was trained: begin again with the same command" in error
    assert not (tmp_path / "run").exists()


def test_whole_numbers_may_be_written_as_1e3():
    arguments = ["demo", "--num-envs", "1e3", "--seed=2e1", "--hidden-sizes", "3e1", "40", "--sharing", "0", "1e0"]
    config = parse_train(arguments)[0].config
    assert (config.num_envs, config.seed, config.hidden_sizes, config.sharing) == (1000, 20, (30, 40), (0, 1))
    assert parse_train(["demo", "--sharing", "None", "--network=gru"])[0].config.sharing is None


def test_a_damaged_config_names_its_copy(tmp_path, capsys):
    copy = tmp_path / "checkpoints" / "30" / "config.yaml"
    copy.parent.mkdir(parents=True)
    for path in (copy, tmp_path / "config.yaml"):
        path.write_text("env: [")
    assert main(["train", "--resume", "--out", str(tmp_path)]) == 2
    assert f"cp {copy} {tmp_path}" in capsys.readouterr().err


def test_settings_of_the_algorithm_add_to_the_presets():
    options, _ = parse_train(["qmix_two_step", "--algorithm-args", "batch_size=16"])
    assert options.config.algorithm_args == load_preset("qmix_two_step").algorithm_args | {"batch_size": 16}
    options, _ = parse_train(["qmix_two_step", "--algorithm", "ippo"])
    assert options.config.algorithm_args == {}


def test_a_preset_of_ones_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("env: matrix_game\nseed: 3\n")
    options, name = parse_train([str(path)])
    assert options.config.seed == 3 and name == "mine"


def test_several_processes_need_a_folder():
    with pytest.raises(UserError, match="add --out"):
        parse_train(["demo", "--num-processes", "2"])


def test_train_eval_render_resume(small_run, fake_learner, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(small_run) == 0
    shown = capsys.readouterr().out
    for text in (
        "compiled in",
        "100 %",
        "final",
        "best: the parameters of update",
        "evaluated in",
        "agent_1",
        "steps/s",
        "curve",
        "episode.gif",
    ):
        assert text in shown
    assert (folder / "plots" / "learning_curve.png").is_file() and (folder / "episode.gif").is_file()

    assert main(["eval", str(folder), "--episodes", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["episodes"] == 5 and found["length"] == 3 and len(found["return_by_agent"]) == 2
    assert main(["eval", str(folder), "--episodes", "5", "--checkpoint", "last"]) == 0
    assert "update 10" in capsys.readouterr().out
    assert main(["eval", str(folder), "--checkpoint", "8"]) == 2
    assert "choose best, last," in capsys.readouterr().err

    assert main(["render", str(folder), "--out", str(tmp_path / "other.gif")]) == 0
    assert (tmp_path / "other.gif").read_bytes()[:3] == b"GIF"
    assert main(["render", str(folder), "--index", "1"]) == 2
    capsys.readouterr()

    assert main(small_run) == 2
    assert "add --resume" in capsys.readouterr().err
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["train", "--resume", "--out", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") == 1 and "is finished after 200 steps" in shown and "begin another run" in shown
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_folder_that_cannot_be_written_takes_one_line(small_run, fake_learner, tmp_path, capsys):
    assert main([*small_run, "--no-plots"]) == 0
    (tmp_path / "file").write_text("")
    capsys.readouterr()
    assert main(["render", str(tmp_path / "run"), "--out", str(tmp_path / "file" / "episode.gif")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "cannot read or write" in error and "file" in error


def test_divergence_has_its_own_status(small_run, fake_learner, capsys):
    fake_learner["poison"] = 4
    assert main(small_run) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "at update 5 " in error


def test_lists(capsys):
    assert main(["envs"]) == 0
    shown = capsys.readouterr().out
    assert "overcooked" in shown and "matrix_game" in shown
    assert main(["presets"]) == 0
    assert "ippo_switch_riddle" in capsys.readouterr().out
    assert main([]) == 0
    assert "train" in capsys.readouterr().out
    assert main(["--version"]) == 0


def test_the_command_is_installed():
    script = Path(sys.executable).with_name("jaxmarl-llm")
    done = subprocess.run([script, "eval", "--help"], capture_output=True, text=True, check=True)
    assert "--checkpoint" in done.stdout
    assert subprocess.run([script, "trian"], capture_output=True, check=False).returncode == 2


def test_the_python_interface_is_loaded_on_first_use():
    from jaxmarl_llm import training

    assert training.TrainConfig is TrainConfig
    assert {"train", "evaluate", "load_run"} <= set(dir(training))
    with pytest.raises(AttributeError):
        training.nothing  # noqa: B018


@pytest.mark.parametrize("command", ["presets", "--version"])
def test_a_reader_that_has_gone_is_status_141(command):
    arguments = [sys.executable, "-m", "jaxmarl_llm.cli", command]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        error = process.stderr.read()
    assert process.returncode == 141 and not error
