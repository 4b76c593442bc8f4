"""Permutation symmetries of networks, found by tracing them."""

from onebasin.symmetry.check import NotASymmetry as NotASymmetry
from onebasin.symmetry.check import UncheckedWarning as UncheckedWarning
from onebasin.symmetry.embedding import CannotEmbed as CannotEmbed
from onebasin.symmetry.embedding import embed as embed
from onebasin.symmetry.groups import Group as Group
from onebasin.symmetry.groups import Place as Place
from onebasin.symmetry.permutation import Permutation as Permutation
from onebasin.symmetry.permutation import Transpositions as Transpositions
from onebasin.symmetry.permutation import stack as stack
from onebasin.symmetry.permutation import transpositions as transpositions
from onebasin.symmetry.scale import ScaleSymmetry as ScaleSymmetry
from onebasin.symmetry.scale import find_scales as find_scales
from onebasin.symmetry.symmetry import Symmetry as Symmetry
from onebasin.symmetry.tracing import NoiseWarning as NoiseWarning
from onebasin.symmetry.tracing import NoRuleWarning as NoRuleWarning
from onebasin.symmetry.tracing import find_symmetry as find_symmetry
from onebasin.symmetry.transform import Transform as Transform
from onebasin.symmetry.written import SymmetryFileError as SymmetryFileError
