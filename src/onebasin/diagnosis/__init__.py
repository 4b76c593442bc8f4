"""Diagnostics of the weights themselves, which are meaningful once draws are in one basin."""

from onebasin.diagnosis.arviz_export import to_arviz as to_arviz
from onebasin.diagnosis.chains import Diagnosis as Diagnosis
from onebasin.diagnosis.chains import align_draws as align_draws
from onebasin.diagnosis.chains import diagnose as diagnose
from onebasin.diagnosis.scramble import scramble as scramble
