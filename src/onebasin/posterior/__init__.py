"""Posteriors over the parameters of a network, and their files."""

from onebasin.posterior.files import Header as Header
from onebasin.posterior.files import load as load
from onebasin.posterior.files import read_header as read_header
from onebasin.posterior.files import save as save
from onebasin.posterior.kronecker import Kronecker as Kronecker
from onebasin.posterior.low_rank import LowRank as LowRank
from onebasin.posterior.low_rank_precision import LowRankPrecision as LowRankPrecision
from onebasin.posterior.mean_field import MeanField as MeanField
from onebasin.posterior.mixture import Mixture as Mixture
from onebasin.posterior.params_files import read_params as read_params
from onebasin.posterior.params_files import write_params as write_params
from onebasin.posterior.protocol import Posterior as Posterior
from onebasin.posterior.protocol import PosteriorT as PosteriorT
from onebasin.posterior.samples import Samples as Samples
