"""The trainings of all doors."""

from trainings.accelerate_loop import AccelerateTraining
from trainings.lightning_trainer import LightningTraining, PytorchLightningTraining
from trainings.plain_loop import LoopTraining
from trainings.transformers_trainer import TransformersTraining

DOORS = {
    "transformers": TransformersTraining,
    "loop": LoopTraining,
    "accelerate": AccelerateTraining,
    "lightning": LightningTraining,
    "pytorch_lightning": PytorchLightningTraining,
}
INTEGRATIONS = {name: DOORS[name] for name in ("transformers", "lightning", "accelerate", "loop")}
"""The doors of which places are tested; the trees of Lightning take turns."""
