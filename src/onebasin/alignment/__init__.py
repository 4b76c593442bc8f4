"""Find the permutations that bring posteriors into one basin."""

from onebasin.alignment.activations import Activations as Activations
from onebasin.alignment.frank_wolfe import FrankWolfe as FrankWolfe
from onebasin.alignment.gaussian_target import LowRankLogDensity as LowRankLogDensity
from onebasin.alignment.joint import JointAlignment as JointAlignment
from onebasin.alignment.joint import align_many as align_many
from onebasin.alignment.objective import AlignmentObjective as AlignmentObjective
from onebasin.alignment.objective import Objective as Objective
from onebasin.alignment.pairwise import Alignment as Alignment
from onebasin.alignment.pairwise import align as align
from onebasin.alignment.path_loss import PathLoss as PathLoss
