"""One Gaussian in place of many draws: rebase, balance, fit, calibrate."""

from onebasin.compaction.calibration import Calibration as Calibration
from onebasin.compaction.calibration import calibrate as calibrate
from onebasin.compaction.compacting import Compact as Compact
from onebasin.compaction.compacting import compact as compact
from onebasin.compaction.effect import Effect as Effect
from onebasin.compaction.rebasing import Rebase as Rebase
