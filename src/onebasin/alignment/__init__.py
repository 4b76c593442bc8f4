"""Permutations that bring posteriors into one basin."""

from onebasin.alignment.frank_wolfe import FrankWolfe as FrankWolfe
from onebasin.alignment.objective import Objective as Objective
from onebasin.alignment.pairwise import Alignment as Alignment
from onebasin.alignment.pairwise import align as align
