"""Likelihoods: log p(y | outputs) of a network, and what a prediction of y is.

A likelihood is a small frozen value that can be compared, hashed and written to a file.
`Classification` and `Regression` are the bases of the built-in ones and of your own.
"""

from onebasin.likelihoods.bernoulli import Bernoulli as Bernoulli
from onebasin.likelihoods.categorical import Categorical as Categorical
from onebasin.likelihoods.checks import check_classes as check_classes
from onebasin.likelihoods.checks import check_logits as check_logits
from onebasin.likelihoods.checks import check_output as check_output
from onebasin.likelihoods.checks import check_positive as check_positive
from onebasin.likelihoods.classification import Classification as Classification
from onebasin.likelihoods.custom import Custom as Custom
from onebasin.likelihoods.gaussian import Gaussian as Gaussian
from onebasin.likelihoods.heteroscedastic import Heteroscedastic as Heteroscedastic
from onebasin.likelihoods.learned_noise import LearnedNoise as LearnedNoise
from onebasin.likelihoods.naming import NAMED as NAMED
from onebasin.likelihoods.naming import LikelihoodLike as LikelihoodLike
from onebasin.likelihoods.naming import likelihood_from as likelihood_from
from onebasin.likelihoods.naming import likelihood_named as likelihood_named
from onebasin.likelihoods.naming import likelihood_of as likelihood_of
from onebasin.likelihoods.naming import settings_of as settings_of
from onebasin.likelihoods.own_params import HasOwnParams as HasOwnParams
from onebasin.likelihoods.own_params import WithOwnParams as WithOwnParams
from onebasin.likelihoods.poisson import Poisson as Poisson
from onebasin.likelihoods.protocol import Likelihood as Likelihood
from onebasin.likelihoods.regression import Regression as Regression
