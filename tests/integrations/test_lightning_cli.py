"""The callback in the YAML of a `LightningCLI`."""

import importlib

import pytest
from trainings import lightning_kit
from trainings.runs import records

from perf_callbacks.kernel.records.fit_records import Run

pytestmark = pytest.mark.filterwarnings("ignore:No seed found")

YAML = """
trainer:
  max_steps: 3
  accelerator: cpu
  devices: 1
  logger: false
  enable_progress_bar: false
  enable_checkpointing: false
  enable_model_summary: false
  default_root_dir: {root}
  callbacks:
    - class_path: perf_callbacks.{framework}.PerfCallback
      init_args:
        config: {config}
"""


@pytest.fixture(autouse=True)
def _as_from_a_command_line(monkeypatch):
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # of what Lightning calls
    monkeypatch.setattr("sys.argv", ["train.py"])


def run(directory, framework, config):
    kinds = lightning_kit.tree(framework)

    class Data(kinds.pl.LightningDataModule):
        def train_dataloader(self):
            return lightning_kit.loader()

    file = directory / "config.yaml"
    file.write_text(YAML.format(root=directory, framework=framework, config=config))
    cli = importlib.import_module(f"{lightning_kit.FRAMEWORKS[framework]}.cli").LightningCLI
    arguments = ["fit", "--config", str(file)]
    return cli(kinds.Automatic, Data, args=arguments, save_config_callback=None)


@pytest.mark.parametrize("framework", lightning_kit.FRAMEWORKS)
def test_a_fit_is_configured_from_yaml(tmp_path, framework):
    cli = run(tmp_path, framework, "{gc_interval: 11, gc: observe, peak_tflops: bf16=989.5}")
    (ours,) = [one for one in cli.trainer.callbacks if isinstance(one, lightning_kit.tree(framework).PerfCallback)]
    assert ours.summary.steps == 3
    (opened,) = records(tmp_path, Run)
    assert (opened.config["gc_interval"], opened.config["gc"]) == (11, "observe")


@pytest.mark.parametrize("config", ["{gc_intervall: 11}", "{gc: sometimes}"])
def test_what_is_wrong_in_the_yaml_is_refused(tmp_path, capsys, config):
    with pytest.raises(SystemExit) as stopped:
        run(tmp_path, "lightning", config)
    assert stopped.value.code == 2
    assert config.strip("{}").partition(":")[0] in capsys.readouterr().err
    assert not (tmp_path / "perf_callbacks").exists()


def test_a_value_that_is_out_of_range_is_refused_in_our_words(tmp_path):
    with pytest.raises(ValueError, match="window: got 0, wanted a whole number from 1 on"):
        run(tmp_path, "lightning", "{window: 0}")


def test_the_yaml_may_leave_the_configuration_out(tmp_path):
    cli = run(tmp_path, "lightning", "null")
    assert cli.trainer.global_step == 3
