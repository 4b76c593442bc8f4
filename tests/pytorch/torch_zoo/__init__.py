"""Small PyTorch modules with the groups that they have, written by hand."""

from torch_zoo import hugging_face as hugging_face
from torch_zoo import sequences as sequences
from torch_zoo import stacks as stacks
from torch_zoo.entries import ZOO as ZOO
from torch_zoo.entries import Entry as Entry
from torch_zoo.entries import made as made
from torch_zoo.entries import places as places
