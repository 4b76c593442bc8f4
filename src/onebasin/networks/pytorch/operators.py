"""All operators: importing this module fills the registry."""

from onebasin.networks.pytorch import operators_complex as operators_complex
from onebasin.networks.pytorch import operators_creation as operators_creation
from onebasin.networks.pytorch import operators_indexing as operators_indexing
from onebasin.networks.pytorch import operators_linear as operators_linear
from onebasin.networks.pytorch import operators_norms as operators_norms
from onebasin.networks.pytorch import operators_pointwise as operators_pointwise
from onebasin.networks.pytorch import operators_recurrent as operators_recurrent
from onebasin.networks.pytorch import operators_reductions as operators_reductions
from onebasin.networks.pytorch import operators_shape as operators_shape
from onebasin.networks.pytorch import operators_windows as operators_windows
