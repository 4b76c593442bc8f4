"""Evaluating posteriors: predictives, profiles and barriers, measures, distances, landscapes."""

from onebasin.evaluation.distances import wasserstein as wasserstein
from onebasin.evaluation.evidence import Evidence as Evidence
from onebasin.evaluation.evidence import log_evidence as log_evidence
from onebasin.evaluation.landscapes import Landscape as Landscape
from onebasin.evaluation.landscapes import landscape as landscape
from onebasin.evaluation.landscapes import plane_through as plane_through
from onebasin.evaluation.landscapes import random_plane as random_plane
from onebasin.evaluation.measures import accuracy as accuracy
from onebasin.evaluation.measures import agreement as agreement
from onebasin.evaluation.measures import calibration_error as calibration_error
from onebasin.evaluation.measures import nll as nll
from onebasin.evaluation.measures import total_variation as total_variation
from onebasin.evaluation.predicting import Predictive as Predictive
from onebasin.evaluation.predicting import predict as predict
from onebasin.evaluation.predicting import predictive as predictive
from onebasin.evaluation.profiles import Profile as Profile
from onebasin.evaluation.profiles import profile as profile
from onebasin.evaluation.reference import ReferenceTable as ReferenceTable
from onebasin.evaluation.reference import reference_table as reference_table
