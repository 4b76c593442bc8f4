"""One compact posterior out of many draws: rebasing, balancing, fitting a Gaussian."""

from onebasin.compaction.calibration import Calibrated as Calibrated
from onebasin.compaction.calibration import calibrate as calibrate
from onebasin.compaction.compacting import Compacted as Compacted
from onebasin.compaction.compacting import compact as compact
from onebasin.compaction.scale import ScaleSymmetry as ScaleSymmetry
from onebasin.compaction.scale import find_scales as find_scales
