"""Paths between posteriors: t in [0, 1] → posterior."""

from onebasin.paths.geodesics import DisplacementPath as DisplacementPath
from onebasin.paths.geodesics import displacement as displacement
from onebasin.paths.geodesics import geodesic as geodesic
from onebasin.paths.geodesics import line as line
from onebasin.paths.mixture import MixturePath as MixturePath
from onebasin.paths.mixture import mixture_path as mixture_path
from onebasin.paths.norm_keeping import NormKeepingPath as NormKeepingPath
from onebasin.paths.norm_keeping import keep_norms as keep_norms
from onebasin.paths.protocol import Path as Path
from onebasin.paths.repairing import RepairedPath as RepairedPath
from onebasin.paths.repairing import repair as repair
from onebasin.paths.tuning import TunedPath as TunedPath
from onebasin.paths.tuning import tune as tune
