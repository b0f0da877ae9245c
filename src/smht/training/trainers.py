"""Which training loop belongs to which way of sharing."""

from smht.distributed.mesh import Mesh
from smht.training.head_trainer import HeadParallelTrainer
from smht.training.sharded_trainer import ShardedTrainer
from smht.training.trainer import SmhtTrainer


def trainer_for(mesh: Mesh) -> type[SmhtTrainer]:
    """The class of the training loop of each of the mesh's ranks."""
    if mesh.head > 1:
        return HeadParallelTrainer
    return ShardedTrainer if mesh.shard > 1 else SmhtTrainer
