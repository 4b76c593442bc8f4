"""State_dicts in files: read, moved by a symmetry, and written as they were."""

from onebasin.checkpoints.checkpoint import Checkpoint as Checkpoint
from onebasin.checkpoints.checkpoint import is_checkpoint as is_checkpoint
from onebasin.checkpoints.checkpoint import read_checkpoint as read_checkpoint
from onebasin.checkpoints.laplace import laplace_from_state_dict as laplace_from_state_dict
from onebasin.checkpoints.laplace import laplace_state_dict as laplace_state_dict
from onebasin.checkpoints.laplace import samples_from_vectors as samples_from_vectors
from onebasin.checkpoints.layout import DTYPES as DTYPES
from onebasin.checkpoints.moving import Entries as Entries
from onebasin.checkpoints.posteriors import (
    mean_field_from_state_dict as mean_field_from_state_dict,
)
from onebasin.checkpoints.posteriors import samples_from_state_dicts as samples_from_state_dicts
from onebasin.checkpoints.posteriors import (
    state_dict_from_mean_field as state_dict_from_mean_field,
)
from onebasin.checkpoints.swag import swag_from_state_dict as swag_from_state_dict
from onebasin.checkpoints.swag import swag_state_dict as swag_state_dict
