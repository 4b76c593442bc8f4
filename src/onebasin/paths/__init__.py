"""Paths between posteriors: t in [0, 1] → posterior."""

from onebasin.paths.displacement import Displacement as Displacement
from onebasin.paths.displacement import displacement as displacement
from onebasin.paths.displacement import geodesic as geodesic
from onebasin.paths.displacement import line as line
from onebasin.paths.mixing import Mixing as Mixing
from onebasin.paths.mixing import mixture as mixture
from onebasin.paths.repair import Repaired as Repaired
from onebasin.paths.repair import repair as repair

Path = Displacement | Mixing | Repaired
