"""State_dicts in files: read, moved by a symmetry, and written as they were."""

from onebasin.checkpoints.checkpoint import Checkpoint as Checkpoint
from onebasin.checkpoints.checkpoint import is_checkpoint as is_checkpoint
from onebasin.checkpoints.checkpoint import read_checkpoint as read_checkpoint
from onebasin.checkpoints.moving import Entries as Entries
from onebasin.checkpoints.posteriors import (
    mean_field_from_state_dict as mean_field_from_state_dict,
)
from onebasin.checkpoints.posteriors import samples_from_state_dicts as samples_from_state_dicts
