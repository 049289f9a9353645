"""The training loop: checkpoints, resuming, exports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt.errors import RuntimeFailure, UsageError
from graphopt.training import checkpoint
from graphopt.training.progress_bar import ProgressBar
from tests.model_testing import parse
from tests.training.models import LINEAR, batches, linear, step, trainer


@pytest.mark.parametrize("accumulate", [1, 3])
def test_resumed_training_is_bit_identical(tmp_path: Path, accumulate: int) -> None:
    fed = list(batches(12))
    whole = trainer("adamw", accumulate=accumulate, clip_norm=1.0)
    expected = whole.fit(fed, lambda done: 0.1 / (done + 1))

    first = trainer("adamw", accumulate=accumulate, clip_norm=1.0)
    losses = first.fit(fed[:5], lambda done: 0.1 / (done + 1))
    first.save(tmp_path / "checkpoint.safetensors")
    second = trainer("adamw", accumulate=accumulate, clip_norm=1.0)
    second.load(tmp_path / "checkpoint.safetensors")
    assert second.steps == 5
    losses += second.fit(fed[5:], lambda done: 0.1 / (done + 1))
    assert losses == expected
    one, other = whole.carried(), second.carried()
    assert one.keys() == other.keys()
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.safetensors"]


def test_step_from_a_file_starts_from_its_state_file(tmp_path: Path) -> None:
    step("momentum").save(tmp_path / "step.onnx", tmp_path / "start.safetensors")
    with pytest.raises(UsageError, match=r"step\.safetensors"):
        graphopt.Trainer(tmp_path / "step.onnx", device="cpu")
    ours = graphopt.Trainer(tmp_path / "step.onnx", tmp_path / "start.safetensors", device="cpu")
    assert all(np.array_equal(ours.parameters()[name], data) for name, data in LINEAR.items())
    assert ours.fit(batches(5)) == pytest.approx(trainer("momentum").fit(batches(5)), rel=1e-5)


def test_checkpoints_with_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    trainer("adam", learning_rate=0.1).save(path)
    trainer("adam", learning_rate=0.2).load(path)  # which the caller may change at any time
    for other in (trainer("adam", eps=1e-3), trainer("adam", clip_norm=1.0), trainer("sgd")):
        with pytest.raises(UsageError, match="has other settings"):
            other.load(path)
    with pytest.raises(UsageError, match="not a file name for a checkpoint"):
        trainer("sgd").save(tmp_path / "checkpoint.npz")
    with pytest.raises(UsageError, match="__metadata__"):
        checkpoint.write(tmp_path / "odd.safetensors", {"__metadata__": LINEAR["w"]}, 1, step().plan)
    assert not (tmp_path / "odd.safetensors").exists()
    with pytest.raises(UsageError, match="no such file"):
        trainer("sgd").load(tmp_path / "missing.safetensors")
    from graphopt.parameters.lifting import as_parameters
    from graphopt.parameters.parameter_files import write

    write(path, as_parameters({"w": LINEAR["w"]}))
    with pytest.raises(UsageError, match="the carried tensor 'b' is missing"):
        trainer("sgd").load(path)
    write(path, as_parameters({"w": LINEAR["w"].T.copy(), "b": LINEAR["b"]}))
    with pytest.raises(UsageError, match="'w' is float32"):
        trainer("sgd").load(path)


def test_export_has_trained_parameters() -> None:
    ours = trainer("sgd", learning_rate=0.1)
    ours.fit(batches(10))
    batch = next(batches(1))
    p = ours.parameters()
    for model in (ours.export(), ours.export(linear())):
        y = graphopt.run(model, {"x": batch["x"]}, device="cpu")["y"]
        np.testing.assert_allclose(y, batch["x"] @ p["w"] + p["b"], rtol=1e-5, atol=1e-5)


def test_export_requires_a_model(tmp_path: Path) -> None:
    step("sgd").save(tmp_path / "step.onnx")
    ours = graphopt.Trainer(tmp_path / "step.onnx", device="cpu")
    with pytest.raises(UsageError, match="has no source model"):
        ours.export()
    assert "w" in ours.export(linear()).graph.initializers


def test_failed_step_does_not_change_the_state() -> None:
    ours = trainer("adam")
    batch = next(batches(1))
    for feeds, failure in (
        ({"x": batch["x"]}, UsageError),
        ({**batch, "z": batch["x"]}, UsageError),
        ({**batch, "x": batch["x"][:, :3]}, RuntimeFailure),
        ({**batch, "x": batch["x"].astype(np.float64)}, UsageError),
    ):
        with pytest.raises(failure):
            ours.step(feeds)
    assert ours.steps == 0
    assert ours.step(batch) == trainer("adam").step(batch)


def test_results_are_copies() -> None:
    ours = trainer("sgd")
    before = ours.parameters()
    kept = {name: data.copy() for name, data in before.items()}
    ours.fit(batches(4))
    assert all(np.array_equal(before[name], kept[name]) for name in kept)
    ours.parameters()["w"][:] = 0
    assert ours.parameters()["w"].any()


def test_fit_calls_watch_after_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    seen = []
    losses = trainer("sgd").fit(batches(3), watch=lambda steps, loss: seen.append((steps, loss)))
    assert seen == list(zip([1, 2, 3], losses, strict=True))
    with ProgressBar(3) as bar:
        trainer("sgd").fit(batches(3), watch=bar)
    assert capsys.readouterr().out == ""


def test_invalid_steps_are_refused(small_file: Path) -> None:
    with pytest.raises(UsageError, match="is not a training step"):
        graphopt.Trainer(small_file, device="cpu")


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    graphopt.save(linear(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_values_fed_for_defaults_apply_to_one_step() -> None:
    model = parse(
        """m (float[N] x, float[1] k) => (float[N] y) <float[1] k = {2}, float[1] w = {1}> { a = Mul(x, k) y = Mul(a, w) }"""
    )
    trainer = graphopt.Trainer(
        graphopt.train_step(model, "mse:y,target", "sgd", wrt=["w"], learning_rate=1e-9), threads=1
    )
    feeds = {"x": np.ones(2, np.float32), "target": np.zeros(2, np.float32)}
    losses = [
        trainer.step(feeds),
        trainer.step({**feeds, "k": np.full(1, 10, np.float32)}),
        *(trainer.step(feeds) for _ in range(4)),
    ]
    assert np.allclose(losses, [4, 100, 4, 4, 4, 4])


def test_wrong_feeds_are_named() -> None:
    trained = graphopt.Trainer(
        graphopt.train_step(
            parse("m (float[N] x) => (float[N] y) <float[1] w = {1}> { y = Mul(x, w) }"),
            "mse:y,target",
            "sgd",
        ),
        threads=1,
    )
    feeds = {"x": np.ones(2, np.float32), "target": np.zeros(2, np.float32)}
    with pytest.raises(UsageError, match="input 'x' expects float32, the array contains float64"):
        trained.step({**feeds, "x": np.ones(2)})
    with pytest.raises(UsageError, match="a dict of arrays"):
        trained.step([feeds])  # type: ignore[arg-type]
    for rate in (-1.0, np.nan, np.ones(3), "a"):
        with pytest.raises(UsageError, match="learning rate"):
            trained.step(feeds, rate)  # type: ignore[arg-type]
